//! An address of rank 0, which all ranks know and at which they meet.
//!
//! The secret of the job is `UNISONO_SECRET`. Without one, any program that implements the protocol is admitted.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::arrivals::Arrivals;
use super::idle;
use super::peer::NAP;
use super::rendezvous::{Joining, Rendezvous, first};
use super::resolver::{Resolved, look_up};
use crate::error::{Error, Result};
use crate::system::listen_at;

/// The longest wait for a name server to learn the name of rank 0's machine, which may have started just before.
const NAME_TIME: Duration = Duration::from_secs(30);
/// The interval at which a rank that does not reach rank 0 resolves its name again, and the longest time that this takes.
const RESOLVE_EVERY: Duration = Duration::from_secs(2);

impl Rendezvous {
    /// Connects the ranks through this address (`host:port`) of rank 0's machine.
    ///
    /// # Errors
    /// [`Error::Launch`] if the address is not usable, or ranks do not arrive or disagree; [`Error::Aborted`] if a rank ends.
    pub(crate) fn new(address: &str, joining: Joining<'_>) -> Result<Self> {
        let cannot = |error| {
            Error::Launch(format!(
                "ranks cannot meet at {address} (MASTER_ADDR, and the port after MASTER_PORT): {error}"
            ))
        };
        let Joining { world: (rank, ranks), timeout, secret, .. } = joining;
        let mut resolved = resolve(address, rank, timeout.min(NAME_TIME))?.map_err(cannot)?;
        if rank == 0 {
            let listeners = listen(address, &resolved).map_err(cannot)?;
            let mut arrivals = Arrivals::new(listeners, secret.0).map_err(cannot)?;
            let question = format!(
                "was each of the {ranks} processes started, with a RANK of its own, and the same MASTER_ADDR and MASTER_PORT?"
            );
            return Self::admit(&mut arrivals, joining, &question, |_| Ok(()));
        }
        let mut resolved_at = Instant::now();
        Self::reach(joining, |claim| {
            // A pod that starts again has another address.
            if resolved_at.elapsed() > RESOLVE_EVERY {
                resolved = resolve(address, rank, RESOLVE_EVERY)?.unwrap_or(resolved.clone());
                resolved_at = Instant::now();
            }
            match first(None, &resolved, claim, secret.0, timeout) {
                Ok(answer) => answer.map(Ok).map_err(Error::Launch),
                Err(error) => Ok(Err(format!(
                    "it is not at {address} ({error}); was it started, and is MASTER_ADDR its machine?"
                ))),
            }
        })
    }
}

/// Returns the addresses of `host:port`. It retries until the timeout if the name is unknown.
///
/// # Errors
/// The cause of the program's callback.
pub(super) fn resolve(address: &str, rank: Rank, timeout: Duration) -> Result<Resolved> {
    let deadline = Instant::now() + timeout;
    loop {
        let resolved = look_up(address, deadline);
        match resolved.map_err(|cause| Error::Aborted { rank, by: rank, cause })? {
            Err(error) if error.kind() != ErrorKind::InvalidInput && Instant::now() < deadline => {}
            resolved => return Ok(resolved),
        }
        idle(rank)?;
        std::thread::sleep(10 * NAP);
    }
}

/// Listens at all of these addresses that belong to this machine, since other machines may reach only one of them. It listens at their port
/// on any address if none does, as behind a gateway, or if a name has only loopback addresses: many systems give their own name such an
/// address, and other machines its real one.
pub(crate) fn listen(address: &str, resolved: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let is_name = address.parse::<SocketAddr>().is_err() && !address.starts_with("localhost:");
    if !is_name || resolved.iter().any(|at| !at.ip().is_loopback()) {
        match listen_at(resolved.iter().copied()) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            listened => return listened,
        }
    }
    // Where an IPv6 socket accepts IPv4 too, the second address is in use. A system may have no IPv6.
    let port = resolved.first().map_or(0, SocketAddr::port);
    listen_at([(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()])
}
