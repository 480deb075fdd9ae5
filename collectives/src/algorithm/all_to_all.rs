//! **All-to-all.** Every rank sends its whole array to every other, and each reduces all of them.
//!
//! ```text
//!    time 1: 0↔1      time 2: 0↔2      time 3: 0↔3 1↔2      time 4: 1↔3      time 5: 2↔3
//! ```
//!
//! At time t rank r exchanges arrays with rank t−r. Every rank thus adds the contributions in the order 0, 1, 2, …, and all
//! ranks end with the same bits, as replicas need. (Exchanging with r±i instead would take p−1 steps, but each rank would add in
//! a different order, and floating-point sums would differ.) At time 2r a rank meets itself: a local step adds its own input at
//! its place in the order.
//!
//! A **reduce-scatter** and a **reduce** send parts, or arrays to one rank, at the same times: contributions are added in the order of
//! ranks, which reductions need that are not commutative.
//!
//! **Cost**, all-reduce: 2(p−1) steps, in which every rank sends p−1 times; n(p−1) bytes; scratch: n for
//! the original input and one segment.
//!
//! **Right when** it is for teaching. Half-precision elements are rounded once. **Wrong when**
//! the array is not small: it sends p/2 times as much as a ring.
//!
//! **Source**: the naive algorithm that every paper starts from; the diagonal order is Unisono's.

use std::ops::Range;

use super::Descriptor;
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor =
    Descriptor { is_quadratic: true, ..Descriptor::flat("all-to-all", schedule) };

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    match operation {
        Operation::AllReduce => Some(all_reduce(rank, ranks)),
        Operation::ReduceScatter => Some(reduce_scatter(rank, ranks)),
        Operation::Reduce { root } => Some(reduce(root, rank, ranks)),
        _ => None,
    }
}

/// Returns the all-reduce, written directly: it does not divide into two halves.
pub fn all_reduce(rank: Rank, ranks: usize) -> Schedule {
    let whole = Chunks::one(0);
    let step = |other| add(Step::new().send_original(other, whole), other, whole);
    Schedule::new(1, contributors(rank, ranks).map(step))
}

/// Returns the reduce-scatter: rank r sends part i to rank i, and adds all contributions to part r in the order
/// of ranks.
pub fn reduce_scatter(rank: Rank, ranks: usize) -> Schedule {
    let own = Chunks::one(rank);
    let step = |other| add(Step::new().send_original(other, Chunks::one(other)), other, own);
    Schedule::new(ranks, contributors(rank, ranks).map(step))
}

/// Returns the reduce: the root adds the arrays of all ranks in the order of ranks.
pub fn reduce(root: Rank, rank: Rank, ranks: usize) -> Schedule {
    let whole = Chunks::one(0);
    if rank != root {
        return Schedule::new(1, [Step::new().send_original(root, whole)]);
    }
    let step = |other| {
        let step = Step::new();
        add(if other == root { step.send_original(root, whole) } else { step }, other, whole)
    };
    Schedule::new(1, contributors(root, ranks).map(step))
}

/// Adds the contribution of a rank. Rank 0's contribution is the first.
fn add(step: Step, other: Rank, chunks: Chunks) -> Step {
    if other == 0 { step.replace(other, chunks) } else { step.reduce(other, chunks) }
}

/// Returns the ranks whose contributions a rank adds, in order. Rank 0 starts with its own in place.
fn contributors(rank: Rank, ranks: usize) -> Range<Rank> {
    if rank == 0 { 1..ranks } else { 0..ranks }
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::AllToAll, |p| testing::Form { steps: 2 * (p - 1), sent: (p - 1, 1) });
    }
}
