//! The interfaces over which other hosts are reached.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use super::variables::INTERFACE;
use crate::system;

/// The variables of Open MPI, libfabric and UCX.
const OF_MPI: [&str; 3] = ["OMPI_MCA_btl_tcp_if_include", "FI_TCP_IFACE", "UCX_NET_DEVICES"];

/// The interfaces to use, by name or network, if any are named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Interfaces {
    named: Vec<String>,
    /// Whether Unisono's variable names them, or networks such as `10.1.0.0/16`. At least one must then exist.
    is_required: bool,
}

impl Interfaces {
    pub(crate) fn from_environment() -> Self {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let own = variable(INTERFACE).filter(|own| !own.is_empty());
        let is_required = own.is_some();
        let values =
            own.map_or_else(|| OF_MPI.iter().filter_map(|name| variable(name)).collect(), |own| vec![own]);
        let each = values.iter().flat_map(|list| list.split(',').map(|one| one.trim().to_owned()));
        Self { named: each.collect(), is_required }
    }

    /// Listens on these interfaces, or on all that other hosts may reach if this machine has none of them. Returns the addresses too.
    ///
    /// # Errors
    /// The system's error, and if the user names interfaces, and this machine has none of them, or only with link-local addresses.
    pub(crate) fn listen(&self) -> io::Result<(Vec<TcpListener>, Vec<SocketAddr>)> {
        let all = system::interfaces()?;
        if self.is_required && !all.iter().any(|(name, ip)| self.has(name, *ip)) {
            let all: Vec<_> = all.iter().map(|(name, ip)| format!("{name} ({ip})")).collect();
            return Err(io::Error::other(format!(
                "{INTERFACE} is {:?}, and this machine has no such interface or network, or only with link-local addresses, but {}",
                self.named.join(","),
                all.join(", ")
            )));
        }
        let listeners = system::listen(|name, ip| self.has(name, ip))?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        Ok((listeners, addresses))
    }

    /// Returns whether an interface with this name and address is one of them.
    fn has(&self, interface: &str, ip: IpAddr) -> bool {
        self.named.iter().any(|named| named == interface || is_in(ip, named))
    }
}

/// Returns whether an address is in a network such as `10.1.0.0/16`.
fn is_in(ip: IpAddr, network: &str) -> bool {
    let Some((first, bits)) = network.split_once('/') else { return false };
    let (Ok(first), Ok(bits)) = (first.parse(), bits.parse::<u32>()) else { return false };
    let (one, other, width) = match (ip, first) {
        (IpAddr::V4(ip), IpAddr::V4(first)) => (u128::from(ip.to_bits()), u128::from(first.to_bits()), 32),
        (IpAddr::V6(ip), IpAddr::V6(first)) => (ip.to_bits(), first.to_bits(), 128),
        _ => return false,
    };
    // A prefix of length 0 contains every address.
    bits <= width && (one ^ other).checked_shr(width - bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment;

    #[test]
    fn interfaces_match_by_name_and_by_network() {
        let variables = [("OMPI_MCA_btl_tcp_if_include", "10.77.0.0/24, lo"), ("UCX_NET_DEVICES", "ib0")];
        let interfaces = Interfaces::read(environment(&variables));
        let has = |interface, ip: &str| interfaces.has(interface, ip.parse().unwrap());
        assert!(has("eth1", "10.77.0.9") && has("lo", "127.0.0.1") && has("ib0", "2001:db8::1"));
        assert!(!has("eth0", "10.77.1.9") && !has("eth0", "2001:db8::1"));
        assert!(!Interfaces::default().has("eth0", "10.77.0.9".parse().unwrap()));
    }

    #[test]
    fn own_variable_takes_precedence_and_its_interface_must_exist() {
        let variables = [("OMPI_MCA_btl_tcp_if_include", "10.77.0.0/24"), (INTERFACE, "nothing9")];
        let interfaces = Interfaces::read(environment(&variables));
        assert!(!interfaces.has("eth1", "10.77.0.9".parse().unwrap()));
        let message = interfaces.listen().unwrap_err().to_string();
        assert!(
            message.contains("UNISONO_INTERFACE is \"nothing9\"") && message.contains("lo (127.0.0.1)"),
            "{message}"
        );
        assert!(Interfaces::default().listen().is_ok());
    }

    #[test]
    fn invalid_network_contains_no_address() {
        let ip = "10.1.2.3".parse().unwrap();
        assert!(is_in(ip, "10.0.0.0/8") && is_in(ip, "10.1.2.3/32") && is_in(ip, "0.0.0.0/0"));
        for network in ["10.1.2.3", "10.1.0.0/33", "10.1.0.0/", "/8", "::/0", "mlx5_0:1"] {
            assert!(!is_in(ip, network), "{network}");
        }
        assert!(is_in("::1".parse().unwrap(), "::/0"));
    }
}
