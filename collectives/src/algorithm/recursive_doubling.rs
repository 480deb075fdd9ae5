//! **Recursive doubling.** Partners exchange whole arrays at doubling distances; after k steps each holds
//! the sum of 2^k ranks. Both partners add the same two numbers, so all ranks hold the same bits.
//!
//! ```text
//!    0↔1 2↔3   then   0↔2 1↔3
//! ```
//!
//! If p is not a power of two, ranks are folded as in the [butterfly](mod@super::butterfly).
//!
//! **Cost**: ⌊log2 p⌋ steps, n⌊log2 p⌋ sent; if p is not a power of two, two steps more, and the busiest rank sends n more;
//! scratch: n, since outgoing data must not change while it is reduced into.
//!
//! **Right when** the array is small: no algorithm has fewer steps.
//! **Wrong when** it is large: it sends log2 p times the array, and a ring less than twice.
//!
//! **Source**: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005): recursive doubling, for short all-reduces.

use super::butterfly::{Folded, Folding};
use super::descriptor::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

/// The catalogue entry.
pub const DESCRIPTOR: Descriptor =
    Descriptor::flat("recursive-doubling", "partners exchange whole arrays at doubling distances", schedule)
        .right_for(Role::FewestSteps);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    (operation == Operation::AllReduce).then(|| all_reduce(rank, ranks))
}

/// The all-reduce, written directly: it does not divide into two halves.
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
    fn costs_what_the_page_says() {
        testing::check(Algorithm::RecursiveDoubling, |p| {
            let log = Folding::new(p).bases.ilog2() as usize;
            let folded = usize::from(!p.is_power_of_two());
            testing::Form { steps: log + 2 * folded, sent: (log + folded, 1) }
        });
    }
}
