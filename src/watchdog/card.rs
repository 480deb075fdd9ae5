//! Cards: the identity of each rank, exchanged when a communicator is created, and the address of its leader.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

/// The maximum length of a host name.
const HOST: usize = 64;

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
    /// The size of a card in words, the same for all, so that one call gathers them.
    pub(crate) const WORDS: usize = 64;

    /// Returns the card of this process, without addresses.
    pub(crate) fn of_this_process(leader: Rank) -> Self {
        let host = crate::system::host().chars().take(HOST).collect();
        Self { host, process_id: std::process::id(), leader, addresses: Vec::new(), secret: [0; 2] }
    }

    /// Keeps only as many addresses as fit into a card.
    pub(crate) fn fit(&mut self) {
        let size_bytes = |card: &Self| Self { secret: [u64::MAX; 2], ..card.clone() }.to_text().len();
        while size_bytes(self) > 8 * (Self::WORDS - 1) && self.addresses.pop().is_some() {}
    }

    fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a card has nothing that JSON has not")
    }

    /// Encodes the card as words.
    ///
    /// # Panics
    /// If it does not [fit](Self::fit).
    pub(crate) fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let text = self.to_text();
        words[0] = text.len() as u64;
        bytemuck::cast_slice_mut(&mut words[1..])[..text.len()].copy_from_slice(&text);
        words
    }

    /// Decodes the card of a rank, if it is valid.
    pub(crate) fn from_words(words: &[u64]) -> Option<Self> {
        let (&length, text) = words.split_first()?;
        let text = bytemuck::cast_slice(text).get(..usize::try_from(length).ok()?)?;
        serde_json::from_slice(text).ok()
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
    fn a_card_goes_over_words() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let card = Card {
            host: "h".repeat(HOST),
            process_id: u32::MAX,
            leader: 70_000,
            addresses: vec![address("10.1.2.3:65535"), address("[2001:db8::1]:9")],
            secret: [u64::MAX; 2],
        };
        assert_eq!(Card::from_words(&card.to_words()), Some(card.clone()));
        let mut most =
            Card { addresses: vec![address("[2001:db8:1111:2222:3333:4444:5555:6666]:65535"); 40], ..card };
        most.fit();
        assert!((4..40).contains(&most.addresses.len()));
        assert_eq!(Card::from_words(&most.to_words()), Some(most));
        assert_eq!(Card::from_words(&[u64::MAX; Card::WORDS]), None);
        assert_eq!(Card::from_words(&[5; Card::WORDS]), None);
    }

    #[test]
    fn this_process_has_a_card() {
        let card = Card::of_this_process(2);
        assert!(card.process_id == std::process::id() && !card.host.is_empty());
        assert_eq!(Card::from_words(&card.to_words()), Some(card));
    }
}
