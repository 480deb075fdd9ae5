//! The hub: ports to which the leaders of other nodes connect, one on each interface.

use std::net::TcpListener;

use super::identity::Identity;
use crate::control::Hidden;
use crate::system::nonce;

/// The listening sockets of the hub.
#[derive(Debug)]
pub(crate) struct Hub(pub(super) Vec<TcpListener>);

impl Hub {
    /// Listens where other hosts may reach this one, and writes the addresses to the identity.
    ///
    /// # Errors
    /// The system's error, and if `UNISONO_INTERFACE` names no interface of this machine.
    pub(crate) fn open(
        identity: &mut Identity,
        interfaces: &crate::config::Interfaces,
    ) -> std::io::Result<Self> {
        interfaces.check()?;
        let listeners = crate::system::listen(|name, ip| interfaces.has(name, ip))?;
        identity.addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        identity.secret = Hidden(nonce());
        Ok(Self(listeners))
    }
}
