//! The network interfaces of this machine.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};

use if_addrs::{IfAddr, Interface};

/// The folders in which the kernel lists adapters that reach other hosts without TCP: InfiniBand, RoCE, Omni-Path and EFA; Slingshot.
#[cfg(any(feature = "mpi", feature = "ucx"))]
const RDMA: [&str; 2] = ["/sys/class/infiniband", "/sys/class/cxi"];

/// Returns whether this machine has an adapter that reaches other hosts without TCP, so that an MPI or UCX may use it.
#[cfg(any(feature = "mpi", feature = "ucx"))]
pub(crate) fn has_rdma() -> bool {
    let has_any = |folder| std::fs::read_dir(folder).is_ok_and(|mut adapters| adapters.next().is_some());
    RDMA.into_iter().any(has_any)
}

/// Returns a random number for a secret or a handshake.
pub(crate) fn nonce() -> [u64; 2] {
    let random = || RandomState::new().hash_one(std::process::id());
    [random(), random()]
}

/// Listens on the preferred interfaces, or on all that other hosts may reach if none is preferred, with a port for each.
/// `is_preferred` gets the name and address of an interface.
pub(crate) fn listen(is_preferred: impl Fn(&str, IpAddr) -> bool) -> io::Result<Vec<TcpListener>> {
    let interfaces = if_addrs::get_if_addrs()?;
    let preferred = interfaces.iter().filter(|interface| is_preferred(&interface.name, interface.ip()));
    let mut ips: Vec<_> = preferred.map(Interface::ip).filter(is_reached).collect();
    if ips.is_empty() {
        ips = interfaces.iter().map(Interface::ip).filter(is_reached).collect();
    }
    // Loopback last, but included: for ranks that cannot share memory, other nodes may be on the same host.
    ips.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    if let Some(first_loopback) = ips.iter().position(IpAddr::is_loopback).filter(|&place| place > 0) {
        ips.truncate(first_loopback);
    }
    let mut listeners = Vec::new();
    let mut failed = None;
    for ip in ips {
        match TcpListener::bind(SocketAddr::new(ip, 0)) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                listeners.push(listener);
            }
            Err(error) => failed = Some(error),
        }
    }
    if listeners.is_empty() {
        let none = "no network interface is up, not even `lo`";
        return Err(failed.unwrap_or_else(|| io::Error::new(ErrorKind::AddrNotAvailable, none)));
    }
    Ok(listeners)
}

/// Returns the names and addresses of the interfaces of this machine, without link-local addresses.
pub(crate) fn interfaces() -> io::Result<Vec<(String, IpAddr)>> {
    let all = if_addrs::get_if_addrs()?.into_iter().filter(|interface| is_reached(&interface.ip()));
    Ok(all.map(|interface| (interface.name.clone(), interface.ip())).collect())
}

/// Sorts addresses of another host: first those in a network of this one, which need no router.
pub(crate) fn sort_by_nearness(addresses: &mut [SocketAddr]) {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let is_near = |address: &SocketAddr| {
        interfaces.iter().any(|interface| shares_network(&interface.addr, address.ip()))
    };
    addresses.sort_by_key(|address| !is_near(address));
}

fn shares_network(of: &IfAddr, ip: IpAddr) -> bool {
    match (of, ip) {
        (IfAddr::V4(own), IpAddr::V4(ip)) => (own.ip.to_bits() ^ ip.to_bits()) & own.netmask.to_bits() == 0,
        (IfAddr::V6(own), IpAddr::V6(ip)) => (own.ip.to_bits() ^ ip.to_bits()) & own.netmask.to_bits() == 0,
        _ => false,
    }
}

fn is_reached(ip: &IpAddr) -> bool {
    // Link-local addresses need an interface number, which differs between hosts.
    !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
