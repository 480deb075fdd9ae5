//! The network interfaces of this machine.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use if_addrs::{IfAddr, Interface};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::{advice, print_line};

/// The time after which a connection that could not be accepted may be tried again.
const AGAIN: Duration = Duration::from_millis(20);

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
    std::array::from_fn(|_| RandomState::new().hash_one(std::process::id()))
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
    listen_at(ips.into_iter().map(|ip| SocketAddr::new(ip, 0)))
}

/// Listens at each of these addresses that belongs to this machine, by sockets that do not block.
///
/// # Errors
/// The error of kind `AddrNotAvailable` if none of them belongs to it, and the system's if it refuses all that do.
pub(crate) fn listen_at(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<Vec<TcpListener>> {
    let (mut listeners, mut failed) = (Vec::new(), None);
    for bound in addresses.into_iter().map(TcpListener::bind) {
        match bound {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                listeners.push(listener);
            }
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            Err(error) => failed = Some(error),
        }
    }
    let none = || io::Error::new(ErrorKind::AddrNotAvailable, "no network interface is up, not even `lo`");
    if listeners.is_empty() { Err(failed.unwrap_or_else(none)) } else { Ok(listeners) }
}

/// Accepts up to `most` connections at each of these listening sockets, which do not block. The first failure is reported, and stored in
/// `failure`.
pub(crate) fn accept(listeners: &[impl AsFd], most: usize, failure: &mut Option<String>) -> Vec<OwnedFd> {
    let (mut accepted, mut failed) = (Vec::new(), None);
    for listener in listeners {
        let waiting = std::iter::from_fn(|| match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => Some(socket),
            Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => None,
            Err(error) => {
                failed = Some(error);
                None
            }
        });
        accepted.extend(waiting.take(most));
    }
    if let Some(error) = failed.map(io::Error::from) {
        failure.get_or_insert_with(|| {
            let why = format!("{error}{}", advice(&error));
            print_line(&format!("connections of other processes cannot be accepted: {why}"));
            why
        });
        // The connection still waits, so the next poll would return at once.
        std::thread::sleep(AGAIN);
    }
    accepted
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
