//! **Tree.** A binomial tree: whole arrays are reduced up the tree to one root, and the result is broadcast down. After k steps
//! down, 2^k ranks have it.
//!
//! ```text
//!    up:   2 ──▸ 0   3 ──▸ 1        then   1 ──▸ 0
//!    down: 0 ──▸ 1                  then   0 ──▸ 2   1 ──▸ 3
//! ```
//!
//! **Cost**, all-reduce: 2⌈log2 p⌉ steps; the root sends n⌈log2 p⌉; scratch: one segment.
//!
//! **Right when** the array is small and only one rank has or needs it (broadcast, reduce). **Wrong when** the array is
//! large: half of the ranks idle, and the root's link carries it log2 p times in each direction.
//!
//! **Source**: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
//! MPICH", IJHPCA 19 (2005): the binomial tree, for short broadcasts and reductions.

use super::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor = Descriptor::flat("tree", schedule).right_for(Role::FromOrToOne);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => broadcast(0, rank, ranks).there_and_back(),
        Operation::Broadcast { root } => broadcast(root, rank, ranks),
        Operation::Reduce { root } => broadcast(root, rank, ranks).reversed(),
        _ => return None,
    })
}

/// Returns the outward half: in step k every rank that has the array sends it to the rank 2^k places after
/// it.
pub fn broadcast(root: Rank, rank: Rank, ranks: usize) -> Schedule {
    let whole = Chunks::one(0);
    let place = (rank + ranks - root) % ranks;
    let at = |place: usize| (place + root) % ranks;
    let distances = (0..usize::BITS).map(|k| 1 << k).take_while(|&distance| distance < ranks);
    let steps = distances.filter_map(|distance| {
        if place < distance && place + distance < ranks {
            Some(Step::new().send(at(place + distance), whole))
        } else if (distance..2 * distance).contains(&place) {
            Some(Step::new().replace(at(place - distance), whole))
        } else {
            None
        }
    });
    Schedule::new(1, steps)
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::Tree, |p| {
            let height = testing::log2_ceil(p);
            testing::Form { steps: 2 * height, sent: (height, 1) }
        });
    }
}
