//! Fault injection: delays and drops messages, to test that results remain correct or calls fail with errors.
//!
//! It is enabled by `UNISONO_CHAOS` (`seed=7,delay_us=200,lose=0.001`). Otherwise messages bypass it.
//!
//! Links keep messages in order, as shared memory and MPI do. A link that drops a message therefore drops all later ones, like a cut
//! cable: its sender continues, and its receiver times out. Point-to-point messages use separate links. Single passes over shared memory,
//! MPI's own collectives, and pipelined exchanges between nodes are only delayed.

use std::time::Duration;

use fastrand::Rng;
use unisono_collectives::Rank;

use crate::config::Chaos;

#[derive(Debug)]
pub(super) struct Faults {
    rank: Rank,
    chaos: Chaos,
    random: Rng,
    /// Whether the link to each rank is cut.
    is_cut: Vec<bool>,
}

impl Faults {
    /// Returns the faults of a rank. The seed and the rank determine them.
    pub(super) fn new(rank: Rank, ranks: usize, chaos: Chaos) -> Self {
        let random = Rng::with_seed(Rng::with_seed(chaos.seed).u64(..) ^ rank as u64);
        Self { rank, chaos, random, is_cut: vec![false; ranks] }
    }

    /// Returns the faults of the links for point-to-point messages.
    pub(super) fn for_messages(&mut self) -> Self {
        let chaos = Chaos { seed: self.random.u64(..), ..self.chaos };
        Self::new(self.rank, self.is_cut.len(), chaos)
    }

    /// Waits up to the maximum delay.
    pub(super) fn delay(&mut self) {
        let longest_us = self.chaos.delay_us;
        if longest_us > 0 {
            std::thread::sleep(Duration::from_micros(self.random.u64(..=longest_us)));
        }
    }

    /// Returns whether the next message to a rank is lost.
    pub(super) fn loses(&mut self, to: Rank) -> bool {
        // A message to this rank itself cannot be lost.
        if to == self.rank {
            return false;
        }
        self.is_cut[to] |= self.random.f64() < self.chaos.lose;
        self.is_cut[to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(lose: f64) -> Vec<Faults> {
        let chaos = Chaos { seed: 3, delay_us: 0, lose };
        (0..3).map(|rank| Faults::new(rank, 3, chaos)).collect()
    }

    #[test]
    fn lost_message_cuts_its_link() {
        for mut end in faults(0.1) {
            let to = (end.rank + 1) % 3;
            let lost: Vec<_> = (0..1000).map(|_| end.loses(to)).collect();
            let first = lost.iter().position(|&lost| lost).expect("one in ten is lost");
            assert!(lost[first..].iter().all(|&lost| lost));
            assert!(!end.is_cut[(to + 1) % 3], "other links are not cut");
        }
    }

    #[test]
    fn faults_differ_by_rank_and_repeat_by_seed() {
        let drawn = |end: &mut Faults| (0..4).map(|_| end.random.u64(..)).collect::<Vec<_>>();
        let [one, again]: [Vec<_>; 2] = [0, 0].map(|_| faults(0.0).iter_mut().map(drawn).collect());
        assert_eq!(one, again);
        assert_ne!(one[0], one[1]);
    }
}
