//! **Ring.** The array is divided into p chunks; every rank communicates only with its two neighbours, and in every step each
//! link carries one chunk.
//!
//! ```text
//!        reduce-scatter (3 steps)               all-gather (3 steps)
//!    0 ◂── 1 ◂── 2 ◂── 3 ◂── 0              0 ──▸ 1 ──▸ 2 ──▸ 3 ──▸ 0
//!    sums grow as they travel               sums are passed on unchanged
//! ```
//!
//! A **scan** is a line from rank 0 to the last: each rank adds its own chunk to the sum that arrives, and forwards it while
//! the next chunk arrives. An exclusive scan first moves each array to the next rank.
//!
//! **Cost**, all-reduce: 2(p−1) steps; every rank sends 2n(p−1)/p; scratch: one segment.
//!
//! **Right when** the array is large: no algorithm sends less, and no link ever carries two messages at once.
//! **Wrong when** it is small or p is large: the number of steps grows with p.
//!
//! **Source**: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! JPDC 69 (2009), section 4.

use std::ops::Range;

use super::Descriptor;
use super::recursive_doubling::shift;
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor = Descriptor::flat("ring", schedule);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => all_gather(rank, ranks).there_and_back(),
        Operation::AllGather => all_gather(rank, ranks),
        Operation::ReduceScatter => all_gather(rank, ranks).reversed(),
        Operation::Scan => scan(rank, 0..ranks, ranks),
        Operation::ExclusiveScan => shift(rank, ranks, ranks).then(scan(rank, 1..ranks, ranks)),
        _ => return None,
    })
}

/// Returns the outward half: rank r starts with chunk r; every rank forwards what it received in the step
/// before.
pub fn all_gather(rank: Rank, ranks: usize) -> Schedule {
    let next = (rank + 1) % ranks;
    let previous = (rank + ranks - 1) % ranks;
    let step = |step: usize| {
        let sent = (rank + ranks - step) % ranks;
        let received = (previous + ranks - step) % ranks;
        Step::new().send(next, Chunks::one(sent)).replace(previous, Chunks::one(received))
    };
    Schedule::new(ranks, (0..ranks - 1).map(step))
}

/// Returns the scan of the arrays of some ranks, chunk by chunk; the others do nothing.
fn scan(rank: Rank, among: Range<Rank>, chunk_count: usize) -> Schedule {
    let is_member = among.contains(&rank);
    let receives = is_member && rank > among.start;
    let sends = is_member && rank + 1 < among.end;
    let step = |step: usize| {
        // A chunk is forwarded in the step after its arrival.
        let received = (receives && step < chunk_count).then_some(step);
        let sent = if receives { step.checked_sub(1) } else { Some(step) };
        let sent = sent.filter(|&chunk| sends && chunk < chunk_count);
        let step = Step::new();
        let step = sent.map_or(step, |chunk| step.send(rank + 1, Chunks::one(chunk)));
        received.map_or(step, |chunk| step.reduce(rank - 1, Chunks::one(chunk)))
    };
    Schedule::new(chunk_count, (0..=chunk_count).map(step).filter(|step| *step != Step::new()))
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::Ring, |p| testing::Form { steps: 2 * (p - 1), sent: (2 * (p - 1), p) });
    }
}
