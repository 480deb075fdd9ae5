//! The addresses of data servers in the name of a source.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::DataError;

/// Servers on other machines that make batches (`unisono serve-data`). All of them serve the same data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// The addresses as `HOST:PORT`, at least one. Servers that join these are discovered.
    pub servers: Vec<String>,
    /// The file with the token that the servers require.
    pub token_file: Option<PathBuf>,
}

impl Service {
    /// Returns whether a text is a host and a port.
    pub fn is_address(text: &str) -> bool {
        let is_host = |host: &str| {
            !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#".contains(c))
        };
        text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok())
    }

    /// Returns the error for an invalid address.
    pub fn refused(address: &str) -> DataError {
        DataError::other(format!("`{address}` is not the address of a data server: expected HOST:PORT"))
    }
}

impl FromStr for Service {
    type Err = DataError;

    fn from_str(list: &str) -> Result<Self, DataError> {
        let servers: Vec<_> = list.split(',').map(|server| server.trim().to_owned()).collect();
        match servers.iter().find(|server| !Self::is_address(server)) {
            Some(wrong) => Err(Self::refused(wrong)),
            None => Ok(Self { servers, token_file: None }),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.servers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_hosts_with_ports() {
        let service: Service = "host1:7070,[::1]:7071, 10.0.0.1:1".parse().unwrap();
        assert_eq!(service.servers, ["host1:7070", "[::1]:7071", "10.0.0.1:1"]);
        assert_eq!(service.to_string(), "host1:7070,[::1]:7071,10.0.0.1:1");
        for (list, wrong) in [
            ("", ""),
            ("host1", "host1"),
            ("a:1,b:x", "b:x"),
            ("a:1,", ""),
            ("http://a:1", "http://a:1"),
            (":1", ":1"),
        ] {
            let refused = list.parse::<Service>().unwrap_err().to_string();
            assert!(
                refused
                    .contains(&format!("`{wrong}` is not the address of a data server: expected HOST:PORT")),
                "{refused}"
            );
        }
    }
}
