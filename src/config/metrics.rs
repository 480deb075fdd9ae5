//! The destination of metrics.

use std::path::PathBuf;

use super::variables::METRICS;
use super::wrong;
use crate::error::Result;

const EXPECTED: &str = "a folder, or host:port such as 127.0.0.1:9400 with a port from 1 to 65535";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Metrics {
    /// A file per rank in this folder.
    Folder(PathBuf),
    /// HTTP at this host, and this port plus the rank of the process in its node.
    Http(String, u16),
}

impl Metrics {
    /// Reads the value: with a colon and no slash, it is an address.
    pub(super) fn read(text: &str) -> Result<Self> {
        let invalid = || wrong(METRICS, text, EXPECTED);
        if text.is_empty() {
            return Err(invalid());
        }
        match text.rsplit_once(':').filter(|_| !text.contains('/')) {
            None => Ok(Self::Folder(text.into())),
            Some((host, port)) => {
                let port = port.parse().ok().filter(|&port| port > 0 && !host.is_empty());
                Ok(Self::Http(host.to_owned(), port.ok_or_else(invalid)?))
            }
        }
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

    #[test]
    fn errors_name_the_variable_and_the_value() {
        for value in ["", ":9400", "localhost:", "localhost:0", "localhost:70000", "localhost:http"] {
            let message = Metrics::read(value).unwrap_err().to_string();
            assert!(message.contains("UNISONO_METRICS") && message.contains(value), "{message}");
        }
    }
}
