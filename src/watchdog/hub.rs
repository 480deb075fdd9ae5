//! The hub: ports to which the leaders of other nodes connect, one on each interface.

use std::net::TcpListener;
#[cfg(feature = "mpi")]
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};

#[cfg(feature = "mpi")]
use super::card::Card;
use super::link::Link;

/// The listening sockets of the hub.
#[derive(Debug)]
pub(crate) struct Hub(Vec<TcpListener>);

impl Hub {
    /// Listens on the interfaces that MPI was told to use, or on all that other hosts may reach, and writes the addresses to the
    /// card.
    ///
    /// # Errors
    /// The system's error.
    #[cfg(feature = "mpi")]
    pub(crate) fn open(card: &mut Card, network: &crate::config::Network) -> std::io::Result<Self> {
        let interfaces = if_addrs::get_if_addrs()?;
        let of_mpi = interfaces.iter().filter(|interface| network.has(&interface.name, interface.ip()));
        let mut ips: Vec<_> = of_mpi.map(if_addrs::Interface::ip).filter(is_reached).collect();
        if ips.is_empty() {
            ips = interfaces.iter().map(if_addrs::Interface::ip).filter(is_reached).collect();
        }
        // For ranks that cannot share memory, other nodes may be on the same host.
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
                    card.addresses.push(listener.local_addr()?);
                    listeners.push(listener);
                }
                Err(error) => failed = Some(error),
            }
        }
        card.fit();
        listeners.truncate(card.addresses.len());
        card.token = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), card.process_id);
        match failed.filter(|_| listeners.is_empty()) {
            Some(error) => Err(error),
            None => Ok(Self(listeners)),
        }
    }

    /// The descriptors to poll.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|listener| listener.as_fd())
    }

    /// New connections, at most this many on each interface.
    pub(super) fn accepted(&self, most: usize) -> impl Iterator<Item = Link> {
        let accept = move |listener: &TcpListener| {
            let accepted = std::iter::from_fn(|| listener.accept().ok()).take(most);
            accepted.filter_map(|(stream, _)| Link::accepted(stream).ok()).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(accept)
    }
}

/// Whether other hosts may reach an address.
#[cfg(feature = "mpi")]
fn is_reached(ip: &IpAddr) -> bool {
    match ip {
        // Link-local addresses need an interface number, which differs between hosts.
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
        IpAddr::V4(_) => true,
    }
}
