//! The destination of metrics.

use std::path::PathBuf;

/// The valid values of [`UNISONO_METRICS`](super::METRICS), for error messages.
pub(super) const EXPECTED: &str = "a folder, or host:port such as 127.0.0.1:9400 with a port from 1 to 65535";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Metrics {
    /// A file per rank in this folder.
    Folder(PathBuf),
    /// HTTP at this host, and this port plus the rank of the process in its node.
    Http(String, u16),
}

impl Metrics {
    /// Reads the value: with a colon and no slash, it is an address.
    pub(super) fn read(text: &str) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        let Some((host, port)) = text.rsplit_once(':').filter(|_| !text.contains('/')) else {
            return Some(Self::Folder(text.into()));
        };
        let port = port.parse().ok().filter(|&port| port > 0 && !host.is_empty())?;
        Some(Self::Http(host.to_owned(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_with_a_port_is_an_address_and_any_other_a_folder() {
        let folder = |path: &str| Metrics::Folder(path.into());
        for path in ["metrics", "/tmp/a:1", "./a:b"] {
            assert_eq!(Metrics::read(path).unwrap(), folder(path));
        }
        let http = |host: &str, port| Metrics::Http(host.to_owned(), port);
        assert_eq!(Metrics::read("localhost:9400").unwrap(), http("localhost", 9400));
        assert_eq!(Metrics::read("[::1]:1").unwrap(), http("[::1]", 1));
    }
}
