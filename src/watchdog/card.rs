//! Cards: the identity of each rank, exchanged when a communicator is created, and the address of its leader.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

/// The identity of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) host: String,
    pub(crate) process_id: u32,
    /// The first of the ranks that share its status board.
    pub(crate) leader: Rank,
    /// The addresses that it listens on, if it is the hub of the leaders.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The secret that connections must prove to know.
    pub(crate) secret: [u64; 2],
}

impl Card {
    /// Returns the card of this process, without addresses.
    pub(crate) fn of_this_process(leader: Rank) -> Self {
        let host = crate::system::host();
        Self { host, process_id: std::process::id(), leader, addresses: Vec::new(), secret: [0; 2] }
    }
}

/// The cards of all ranks of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cards(pub(crate) Vec<Card>);

impl Cards {
    pub(crate) fn ranks(&self) -> usize {
        self.0.len()
    }

    /// Returns a rank with its host and process: "rank 3 (host h, pid 123)".
    pub(crate) fn whole_name(&self, rank: Rank) -> String {
        let Card { host, process_id, .. } = &self.0[rank];
        format!("rank {rank} (host {host}, pid {process_id})")
    }

    /// Returns a rank named by its host: "host h (rank 3)".
    pub(crate) fn host_name(&self, rank: Rank) -> String {
        format!("host {} (rank {rank})", self.0[rank].host)
    }

    /// Returns the leaders of all status boards; the first is that of rank 0.
    pub(crate) fn leaders(&self) -> Vec<Rank> {
        let mut leaders: Vec<_> = self.0.iter().map(|card| card.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        leaders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_card() {
        let card = Card::of_this_process(2);
        assert!(card.process_id == std::process::id() && !card.host.is_empty());
        assert_eq!(Cards(vec![card; 3]).leaders(), [2]);
    }
}
