//! Plans: the part of one rank in a collective, phase by phase.

use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::{Group, Rank};

/// A vendor's collective (NCCL's, MPI's own) among the ranks of a phase's group.
///
/// A vendor adds in its own order, so the bits of a sum may differ from those of the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorCall {
    /// A reduce, broadcast, reduce-scatter or all-gather; its root is a position in the group.
    pub operation: Operation,
    /// The part of each position, of a reduce-scatter or all-gather: together all chunks, in order.
    pub parts: Vec<Chunks>,
}

/// One part of a plan: a group of ranks that run a schedule among themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// A human-readable name: "reduce in the node".
    pub name: &'static str,
    /// The ranks that take part; the schedule's ranks are positions in this group.
    pub group: Group,
    /// This rank's schedule.
    pub schedule: Schedule,
    /// The vendor's collective that may replace the schedule, on all ranks of the group or none.
    pub vendor: Option<VendorCall>,
}

impl Phase {
    /// Returns whether the phase is within nodes. Exactly these phases have a vendor call.
    pub fn is_in_node(&self) -> bool {
        self.vendor.is_some()
    }
}

/// The plan of one rank in one collective: phases in order, over the same chunks of one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    chunk_count: usize,
    phases: Vec<Phase>,
}

impl Plan {
    /// Returns a plan with these phases. Phases in which this rank does nothing are omitted.
    ///
    /// # Panics
    /// If phases split the buffer into different numbers of chunks.
    pub fn new(chunk_count: usize, phases: impl IntoIterator<Item = Phase>) -> Self {
        let phases: Vec<_> = phases.into_iter().filter(|phase| !phase.schedule.steps().is_empty()).collect();
        for phase in &phases {
            assert_eq!(phase.schedule.chunk_count(), chunk_count, "phase {:?}", phase.name);
        }
        Self { chunk_count, phases }
    }

    /// Returns a plan of a single phase in which all ranks of a world take part.
    pub fn single(name: &'static str, world: Group, schedule: Schedule) -> Self {
        Self::new(schedule.chunk_count(), [Phase { name, group: world, schedule, vendor: None }])
    }

    /// Returns the number of chunks, which is identical on all ranks.
    pub fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// Returns the phases, in order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    pub(crate) fn steps_mut(&mut self) -> impl Iterator<Item = &mut Step> {
        self.phases.iter_mut().flat_map(|phase| &mut phase.schedule.steps)
    }

    /// Returns all phases as one schedule of world ranks, which is verified, costed, drawn and simulated.
    pub fn flattened(&self) -> Schedule {
        let world = |phase: &Phase| {
            let group = phase.group.clone();
            phase.schedule.clone().renamed(move |position: Rank| group.member(position))
        };
        self.phases.iter().map(world).fold(Schedule::new(self.chunk_count, []), Schedule::then)
    }

    /// Returns the phases that remain if vendors execute all phases that they can, as a plan over the chunks that these phases use; `None` if no
    /// phase remains.
    pub fn without_vendors(&self) -> Option<(Chunks, Self)> {
        let remaining = || self.phases.iter().filter(|phase| phase.vendor.is_none());
        let accessed = remaining().flat_map(|phase| phase.schedule.steps()).flat_map(Step::accessed);
        let all = accessed
            .reduce(|all, chunks| Chunks::new(all.start.min(chunks.start), all.end.max(chunks.end)))?;
        let moved = |phase: &Phase| {
            let schedule = phase.schedule.clone().refined(all.count(), |chunk| chunk - all.start);
            Phase { schedule, ..phase.clone() }
        };
        Some((all, Self::new(all.count(), remaining().map(moved))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Topology, verify};

    fn plans(algorithm: Algorithm, topology: &Topology) -> Vec<Plan> {
        algorithm.plans(Operation::AllReduce, topology).unwrap()
    }

    #[test]
    fn vendor_calls_match_the_steps_of_their_phases() {
        for algorithm in [Algorithm::HierarchicalCopy, Algorithm::Rail] {
            for ranks in 2..9 {
                let plans = plans(algorithm, &Topology::single_node(ranks));
                for (number, phase) in plans[0].phases().iter().enumerate() {
                    let only = |plan: &Plan| {
                        let Phase { name, group, schedule, .. } = plan.phases()[number].clone();
                        Plan::single(name, group, schedule)
                    };
                    let alone: Vec<_> = plans.iter().map(only).collect();
                    let call = phase.vendor.as_ref().expect("every phase in a node has a vendor call");
                    assert_eq!(verify(&alone, call.operation), [], "{algorithm}, {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn parts_of_vendor_calls_are_contiguous_and_complete() {
        for sizes in [&[3, 1][..], &[2, 5, 3], &[4, 4]] {
            let plans = plans(Algorithm::Rail, &Topology::from_node_sizes(sizes));
            for phase in plans.iter().flat_map(Plan::phases) {
                let Some(VendorCall { parts, .. }) = &phase.vendor else { continue };
                assert_eq!(parts.len(), phase.group.ranks());
                let end = parts.iter().fold(0, |next, part| {
                    assert_eq!(part.start, next);
                    part.end
                });
                assert_eq!(end, phase.schedule.chunk_count());
            }
        }
    }

    #[test]
    fn phases_between_nodes_remain_without_vendors() {
        let topology = Topology::from_node_sizes(&[2, 1]);
        let rail = plans(Algorithm::Rail, &topology);
        // Two shards of two chunks: the second node's only rank holds both.
        let (chunks, remaining) = rail[1].without_vendors().unwrap();
        assert_eq!((chunks, remaining.chunk_count(), remaining.phases().len()), (Chunks::new(2, 4), 2, 1));
        let (chunks, remaining) = rail[2].without_vendors().unwrap();
        assert_eq!((chunks, remaining.chunk_count(), remaining.phases().len()), (Chunks::new(0, 4), 4, 2));

        let copy = plans(Algorithm::HierarchicalCopy, &topology);
        assert!(copy[0].without_vendors().is_some());
        assert_eq!(copy[1].without_vendors(), None);
    }
}
