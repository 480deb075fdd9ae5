//! **Master-worker.** All ranks send their arrays to one, which reduces them and sends the result back to each.
//!
//! ```text
//!    3 ──▸ 0    2 ──▸ 0    1 ──▸ 0    0 ──▸ 1    0 ──▸ 2    0 ──▸ 3
//! ```
//!
//! **Cost**, all-reduce: 2(p−1) steps; the master sends n(p−1), the others n; scratch: one segment.
//!
//! **Right when** one rank must hold all data (gather, scatter), or as the baseline of parameter servers. Half-precision
//! elements are rounded once: one rank makes all additions. **Wrong when** p is more than a few: everything goes through one
//! link.
//!
//! **Source**: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice, and experience", CCPE
//! 19 (2007), section 2 (whose lower bounds it does not reach).

use super::{Descriptor, Role};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor =
    Descriptor::flat("master-worker", schedule).right_for(Role::PartsOfOne);

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    Some(match operation {
        Operation::AllReduce => broadcast(0, rank, ranks).there_and_back(),
        Operation::Broadcast { root } => broadcast(root, rank, ranks),
        Operation::Reduce { root } => broadcast(root, rank, ranks).reversed(),
        Operation::Gather { root } => gather(root, rank, ranks),
        Operation::Scatter { root } => scatter(root, rank, ranks),
        _ => return None,
    })
}

/// Returns the outward half: the root sends its whole array to each other rank, one after the other.
pub fn broadcast(root: Rank, rank: Rank, ranks: usize) -> Schedule {
    let whole = Chunks::one(0);
    if rank == root {
        Schedule::new(1, others(root, ranks).map(|other| Step::new().send(other, whole)))
    } else {
        Schedule::new(1, [Step::new().replace(root, whole)])
    }
}

/// Returns the gather: every rank sends its own chunk to the root.
pub fn gather(root: Rank, rank: Rank, ranks: usize) -> Schedule {
    if rank == root {
        Schedule::new(ranks, others(root, ranks).map(|other| Step::new().replace(other, Chunks::one(other))))
    } else {
        Schedule::new(ranks, [Step::new().send(root, Chunks::one(rank))])
    }
}

/// Returns the scatter: the root sends each rank its own chunk.
pub fn scatter(root: Rank, rank: Rank, ranks: usize) -> Schedule {
    if rank == root {
        Schedule::new(ranks, others(root, ranks).map(|other| Step::new().send(other, Chunks::one(other))))
    } else {
        Schedule::new(ranks, [Step::new().replace(root, Chunks::one(rank))])
    }
}

fn others(root: Rank, ranks: usize) -> impl Iterator<Item = Rank> {
    (0..ranks).filter(move |&rank| rank != root)
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, cost::testing};

    #[test]
    fn cost_matches_the_documentation() {
        testing::check(Algorithm::MasterWorker, |p| testing::Form { steps: 2 * (p - 1), sent: (p - 1, 1) });
    }
}
