//! **Round-robin.** Every rank reduces its own part: all others send it theirs directly, ordered so that in every step each rank
//! sends one chunk and receives one; then it distributes the result in the same way. A reduce sends all results to the root.
//!
//! ```text
//!    step 1: 0→1 1→2 2→3 3→0      step 2: 0→2 1→3 2→0 3→1      step 3: 0→3 1→0 2→1 3→2
//! ```
//!
//! **Cost**, all-reduce: 2(p−1) steps; every rank sends 2n(p−1)/p; scratch: one segment.
//!
//! **Right when** every pair of ranks has its own link (memory, a switch), and half-precision elements should be rounded once:
//! one rank makes all additions to a chunk. **Wrong when** distant ranks share links, or the array is small.
//!
//! **Source**: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005): pairwise exchange, for long reduce-scatters.

use super::master_worker::gather;
use super::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor =
    Descriptor::flat("round-robin", schedule).right_for(Role::PartsOfAll);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => all_gather(rank, ranks).there_and_back(),
        Operation::AllGather => all_gather(rank, ranks),
        Operation::ReduceScatter => all_gather(rank, ranks).reversed(),
        Operation::Reduce { root } => all_gather(rank, ranks).reversed().then(gather(root, rank, ranks)),
        Operation::AllToAll => all_to_all(rank, ranks),
        _ => return None,
    })
}

/// Returns the ranks `distance` places after and before.
fn partners(rank: Rank, ranks: usize, distance: usize) -> (Rank, Rank) {
    ((rank + distance) % ranks, (rank + ranks - distance) % ranks)
}

/// Returns the outward half: rank r starts with chunk r and sends it to every other rank, the next one first.
pub fn all_gather(rank: Rank, ranks: usize) -> Schedule {
    let step = |distance| {
        let (to, from) = partners(rank, ranks, distance);
        Step::new().send(to, Chunks::one(rank)).replace(from, Chunks::one(from))
    };
    Schedule::new(ranks, (1..ranks).map(step))
}

/// Returns the all-to-all: every rank sends chunk j of its input to rank j, and stores the chunk from rank i as chunk i.
///
/// p−1 steps, n(p−1)/p sent. It sends the original input, since incoming data overwrites chunks not yet sent.
pub fn all_to_all(rank: Rank, ranks: usize) -> Schedule {
    let step = |distance| {
        let (to, from) = partners(rank, ranks, distance);
        Step::new().send_original(to, Chunks::one(to)).replace(from, Chunks::one(from))
    };
    Schedule::new(ranks, (1..ranks).map(step))
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::RoundRobin, |p| testing::Form {
            steps: 2 * (p - 1),
            sent: (2 * (p - 1), p),
        });
    }
}
