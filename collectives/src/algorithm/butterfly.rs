//! **Butterfly.** Recursive halving, then recursive doubling: at doubling distances, partners exchange halves of the range they
//! still reduce, until each holds one reduced chunk; then the same steps in reverse.
//!
//! ```text
//!    halving:   0↔2 1↔3 (n/2 each)   then   0↔1 2↔3 (n/4 each)
//!    doubling:  0↔1 2↔3 (n/4 each)   then   0↔2 1↔3 (n/2 each)
//! ```
//!
//! If p is not a power of two, let q be the largest one below it. The first 2(p−q) ranks form pairs; the odd rank of each pair
//! sends its array to the even one before, and receives the result from it after ("folding").
//!
//! **Cost**, all-reduce: 2 log2 p steps, 2n(p−1)/p sent; where p is no power of two 2⌊log2 p⌋+2 steps, and
//! the busiest rank sends n + 2n(q−1)/q; scratch: one segment.
//!
//! **Right when** p is a power of two and the array is of any size above a few KiB: as little to send as a
//! ring, in log p steps. **Wrong when** distant ranks share links, or p is just above a power of two.
//!
//! **Source**: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; the
//! folding of a world that is not a power of two by Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).

use super::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor =
    Descriptor::flat("butterfly", schedule).right_for(Role::FewestBytes);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => outward(rank, ranks).there_and_back(),
        Operation::AllGather => all_gather(rank, ranks),
        Operation::ReduceScatter => all_gather(rank, ranks).reversed(),
        _ => return None,
    })
}

/// Folds the ranks of any world onto a power of two of *bases*.
#[derive(Debug, Clone, Copy)]
pub struct Folding {
    /// The number of bases: the largest power of two not above the number of ranks.
    pub bases: usize,
    /// The number of bases that also act for an extra rank.
    pub extras: usize,
}

/// The part of a rank in a folding.
#[derive(Debug, Clone, Copy)]
pub enum Folded {
    /// Base number `base`, and the extra rank that it acts for, if any.
    Base {
        /// Its number.
        base: usize,
        /// The extra rank.
        extra: Option<Rank>,
    },
    /// An extra rank, for which the rank `stand_in` acts.
    Extra {
        /// The base's rank.
        stand_in: Rank,
    },
}

impl Folding {
    /// Returns the butterfly of this many ranks.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(ranks: usize) -> Self {
        let bases = 1 << ranks.ilog2();
        Self { bases, extras: ranks - bases }
    }

    /// Returns the part of a rank.
    pub fn of(self, rank: Rank) -> Folded {
        if rank >= 2 * self.extras {
            Folded::Base { base: rank - self.extras, extra: None }
        } else if rank.is_multiple_of(2) {
            Folded::Base { base: rank / 2, extra: Some(rank + 1) }
        } else {
            Folded::Extra { stand_in: rank - 1 }
        }
    }

    /// Returns the rank that is base number `base`; for one past the last base, one past the last rank.
    pub fn rank(self, base: usize) -> Rank {
        base + base.min(self.extras)
    }

    /// Returns the distances between partners, nearest first.
    pub fn distances(self) -> impl Iterator<Item = usize> {
        (0..self.bases.ilog2()).map(|k| 1 << k)
    }
}

/// Returns the outward half of the all-reduce: base b starts with chunk b, of as many chunks as there are bases. Both halves of a message
/// have the same step: a rank without a partner in a step does nothing.
pub fn outward(rank: Rank, ranks: usize) -> Schedule {
    let folding = Folding::new(ranks);
    let whole = Chunks::new(0, folding.bases);
    let steps: Vec<_> = match folding.of(rank) {
        Folded::Base { base, extra } => {
            let fold_out = extra.map_or(Step::new(), |extra| Step::new().send(extra, whole));
            let fold_out = (folding.extras > 0).then_some(fold_out);
            doubling(base, folding, |base| base).chain(fold_out).collect()
        }
        Folded::Extra { stand_in } => {
            let idle = folding.distances().map(|_| Step::new());
            idle.chain([Step::new().replace(stand_in, whole)]).collect()
        }
    };
    Schedule::new(folding.bases, steps)
}

/// Returns the all-gather as an operation, where every rank starts with its own part.
///
/// A base that acts for an extra rank first receives that rank's part, and so starts with two. At the end it sends the chunks
/// before that part and those after it, in two messages.
pub fn all_gather(rank: Rank, ranks: usize) -> Schedule {
    let folding = Folding::new(ranks);
    let others_than = |part: Rank| {
        let around = [Chunks::new(0, part), Chunks::new(part + 1, ranks)];
        around.into_iter().filter(|chunks| chunks.count() > 0)
    };
    let mut steps = Vec::new();
    match folding.of(rank) {
        Folded::Base { base, extra } => {
            steps.extend(extra.map(|extra| Step::new().replace(extra, Chunks::one(extra))));
            steps.extend(doubling(base, folding, |base| folding.rank(base)));
            if let Some(extra) = extra {
                steps.extend(others_than(extra).map(|chunks| Step::new().send(extra, chunks)));
            }
        }
        Folded::Extra { stand_in } => {
            steps.push(Step::new().send(stand_in, Chunks::one(rank)));
            steps.extend(others_than(rank).map(|chunks| Step::new().replace(stand_in, chunks)));
        }
    }
    Schedule::new(ranks, steps)
}

/// Returns the steps in which bases gather at doubling distances. Base b starts with the chunks `first(b)..first(b + 1)`.
fn doubling(base: usize, folding: Folding, first: impl Fn(usize) -> usize) -> impl Iterator<Item = Step> {
    folding.distances().map(move |distance| {
        let gathered = |base: usize| {
            let block = base & !(distance - 1);
            Chunks::new(first(block), first(block + distance))
        };
        let partner = base ^ distance;
        let rank = folding.rank(partner);
        Step::new().send(rank, gathered(base)).replace(rank, gathered(partner))
    })
}

#[cfg(test)]
mod tests {
    use super::Folding;
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::Butterfly, |p| {
            let q = Folding::new(p).bases;
            let log = q.ilog2() as usize;
            if p == q {
                testing::Form { steps: 2 * log, sent: (2 * (p - 1), p) }
            } else {
                testing::Form { steps: 2 * log + 2, sent: (q + 2 * (q - 1), q) }
            }
        });
    }
}
