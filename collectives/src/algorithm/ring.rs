//! **Ring.** The array is divided into p chunks; every rank communicates only with its two neighbours, and in every step each
//! link carries one chunk.
//!
//! ```text
//!        reduce-scatter (3 steps)               all-gather (3 steps)
//!    0 ◂── 1 ◂── 2 ◂── 3 ◂── 0              0 ──▸ 1 ──▸ 2 ──▸ 3 ──▸ 0
//!    sums grow as they travel               sums are passed on unchanged
//! ```
//!
//! **Cost**, all-reduce: 2(p−1) steps; every rank sends 2n(p−1)/p; scratch: one segment.
//!
//! **Right when** the array is large: no algorithm sends less, and no link ever carries two messages at once.
//! **Wrong when** it is small or p is large: the number of steps grows with p.
//!
//! **Source**: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! JPDC 69 (2009), section 4.

use super::descriptor::Descriptor;
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

/// The catalogue entry.
pub const DESCRIPTOR: Descriptor =
    Descriptor::flat("ring", "from neighbour to neighbour, all around", schedule);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => all_gather(rank, ranks).there_and_back(),
        Operation::AllGather => all_gather(rank, ranks),
        Operation::ReduceScatter => all_gather(rank, ranks).reversed(),
        _ => return None,
    })
}

/// The outward half: rank r starts with chunk r; every rank forwards what it received in the step before.
pub fn all_gather(rank: Rank, ranks: usize) -> Schedule {
    let next = (rank + 1) % ranks;
    let previous = (rank + ranks - 1) % ranks;
    let step = |step: usize| {
        let passed_on = (rank + ranks - step) % ranks;
        let taken_in = (previous + ranks - step) % ranks;
        Step::new().send(next, Chunks::one(passed_on)).replace(previous, Chunks::one(taken_in))
    };
    Schedule::new(ranks, (0..ranks - 1).map(step))
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn costs_what_the_page_says() {
        testing::check(Algorithm::Ring, |p| testing::Form { steps: 2 * (p - 1), sent: (2 * (p - 1), p) });
    }
}
