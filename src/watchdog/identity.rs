//! The identity of each rank, which ranks exchange when a communicator is created.

use std::io;
use std::net::{SocketAddr, TcpListener};

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

use crate::config::Interfaces;
use crate::control::Hidden;
use crate::system::nonce;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) host: String,
    pub(crate) process_id: u32,
    /// The first of the ranks that share its status board.
    pub(crate) leader: Rank,
    /// The addresses on which it listens, if it is the hub of the leaders.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) secret: Hidden<[u64; 2]>,
    /// The number of this world among those of the process that are observed.
    pub(crate) world: u64,
}

impl Identity {
    pub(crate) fn of_this_process(leader: Rank) -> Self {
        let host = crate::system::host();
        let (addresses, secret) = (Vec::new(), Hidden([0; 2]));
        Self { host, process_id: std::process::id(), leader, addresses, secret, world: 0 }
    }

    /// Makes this rank the hub of the leaders: it listens on each interface at which other hosts may reach this one.
    ///
    /// # Errors
    /// The system's error, and if `UNISONO_INTERFACE` names no interface of this machine.
    pub(crate) fn listen(&mut self, interfaces: &Interfaces) -> io::Result<Vec<TcpListener>> {
        let (listeners, addresses) = interfaces.listen()?;
        (self.addresses, self.secret) = (addresses, Hidden(nonce()));
        Ok(listeners)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identities(pub(crate) Vec<Identity>);

impl Identities {
    pub(crate) fn ranks(&self) -> usize {
        self.0.len()
    }

    /// Returns a rank with its host and process: "rank 3 (host h, pid 123)".
    pub(crate) fn whole_name(&self, rank: Rank) -> String {
        let Identity { host, process_id, .. } = &self.0[rank];
        format!("rank {rank} (host {host}, pid {process_id})")
    }

    /// Returns a rank named by its host: "host h (rank 3)".
    pub(crate) fn host_name(&self, rank: Rank) -> String {
        format!("host {} (rank {rank})", self.0[rank].host)
    }

    /// Returns the leaders of all status boards, that of rank 0 first.
    pub(crate) fn leaders(&self) -> Vec<Rank> {
        let mut leaders: Vec<_> = self.0.iter().map(|identity| identity.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        leaders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_identity_names_host_and_process() {
        let identity = Identity::of_this_process(2);
        assert!(identity.process_id == std::process::id() && !identity.host.is_empty());
        assert_eq!(Identities(vec![identity; 3]).leaders(), [2]);
    }
}
