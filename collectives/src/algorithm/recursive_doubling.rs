//! **Recursive doubling.** Partners exchange whole arrays at doubling distances; after k steps each holds
//! the sum of 2^k ranks. Both partners add the same two numbers, so all ranks hold the same bits.
//!
//! ```text
//!    0↔1 2↔3   then   0↔2 1↔3
//! ```
//!
//! If p is not a power of two, ranks are folded as in the [butterfly](mod@super::butterfly).
//!
//! A **scan** has the same distances, in one direction: after k steps a rank holds the sum of the 2^k ranks that end with itself.
//!
//! ```text
//!    0→1→2→3 (each its own)   then   0→2 1→3 (each the sum of two)
//! ```
//!
//! An exclusive scan first moves each array to the next rank.
//!
//! **Cost**: ⌊log2 p⌋ steps, n⌊log2 p⌋ sent; if p is not a power of two, two steps more, and the busiest rank sends n more;
//! scratch: n, since outgoing data must not change while it is reduced into.
//!
//! **Right when** the array is small: no algorithm has fewer steps.
//! **Wrong when** it is large: it sends log2 p times the array, and a ring less than twice.
//!
//! **Source** of scans: Hillis and Steele, "Data parallel algorithms", CACM 29 (1986): sum of all prefixes. Of the all-reduce: Thakur,
//! Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005): recursive doubling, for short
//! all-reduces.

use std::ops::Range;

use super::butterfly::{Folded, Folding};
use super::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor =
    Descriptor::flat("recursive-doubling", schedule).right_for(Role::FewestSteps);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => all_reduce(rank, ranks),
        Operation::Scan => scan(rank, 0..ranks),
        Operation::ExclusiveScan => shift(rank, ranks, 1).then(scan(rank, 1..ranks)),
        _ => return None,
    })
}

/// Returns the scan of the arrays of some ranks; the others do nothing.
fn scan(rank: Rank, among: Range<Rank>) -> Schedule {
    let whole = Chunks::one(0);
    let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
    let step = |distance: usize| {
        let step = Step::new();
        let step = if among.contains(&(rank + distance)) { step.send(rank + distance, whole) } else { step };
        let before = rank.checked_sub(distance).filter(|before| among.contains(before));
        before.map_or(step, |before| step.reduce(before, whole))
    };
    let is_member = among.contains(&rank);
    let steps = distances.take_while(|&distance| is_member && distance < among.len()).map(step);
    Schedule::new(1, steps.filter(|step| *step != Step::new()))
}

/// Moves the array of each rank, in `chunk_count` chunks, to the next rank. Rank 0 keeps its own.
pub(super) fn shift(rank: Rank, ranks: usize, chunk_count: usize) -> Schedule {
    let whole = Chunks::new(0, chunk_count);
    let step = Step::new();
    // The others send what they replace. A copy of the whole array is kept for that.
    let send = if rank == 0 { Step::send } else { Step::send_original };
    let step = if rank + 1 < ranks { send(step, rank + 1, whole) } else { step };
    let step = if rank > 0 { step.replace(rank - 1, whole) } else { step };
    Schedule::new(chunk_count, [step].into_iter().filter(|step| *step != Step::new()))
}

/// Returns the all-reduce, written directly: it does not divide into two halves.
pub fn all_reduce(rank: Rank, ranks: usize) -> Schedule {
    let whole = Chunks::one(0);
    let folding = Folding::new(ranks);
    let (base, extra) = match folding.of(rank) {
        Folded::Base { base, extra } => (base, extra),
        Folded::Extra { stand_in } => {
            return Schedule::new(
                1,
                [Step::new().send(stand_in, whole), Step::new().replace(stand_in, whole)],
            );
        }
    };
    let exchange = |distance| {
        let partner = folding.rank(base ^ distance);
        Step::new().send(partner, whole).reduce(partner, whole)
    };
    let fold_in = extra.map(|extra| Step::new().reduce(extra, whole));
    let fold_out = extra.map(|extra| Step::new().send(extra, whole));
    Schedule::new(1, fold_in.into_iter().chain(folding.distances().map(exchange)).chain(fold_out))
}

#[cfg(test)]
mod tests {
    use super::Folding;
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::RecursiveDoubling, |p| {
            let log = Folding::new(p).bases.ilog2() as usize;
            let folded = usize::from(!p.is_power_of_two());
            testing::Form { steps: log + 2 * folded, sent: (log + folded, 1) }
        });
    }
}
