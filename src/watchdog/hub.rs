//! The hub: ports to which the leaders of other nodes connect, one on each interface.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};

use super::identity::Identity;
use crate::control::Hidden;
use crate::system::nonce;

/// The listening sockets of the hub.
#[derive(Debug)]
pub(crate) struct Hub(Vec<TcpListener>);

impl Hub {
    /// Listens where other hosts may reach this one, and writes the addresses to the identity.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn open(
        identity: &mut Identity,
        interfaces: &crate::config::Interfaces,
    ) -> std::io::Result<Self> {
        let listeners = crate::system::listen(|name, ip| interfaces.has(name, ip))?;
        identity.addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        identity.secret = Hidden(nonce());
        Ok(Self(listeners))
    }

    /// Returns the descriptors to poll.
    pub(super) fn waits_on(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|listener| listener.as_fd())
    }

    /// Returns new connections, at most this many on each interface.
    pub(super) fn accepted(&self, most: usize) -> impl Iterator<Item = TcpStream> {
        let accept = move |listener: &TcpListener| {
            let accepted = std::iter::from_fn(|| listener.accept().ok()).take(most);
            accepted.map(|(stream, _)| stream).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(accept)
    }
}
