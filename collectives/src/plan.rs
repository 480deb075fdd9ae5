//! Plans: what one rank does in one collective, phase by phase.

use crate::schedule::{Chunks, Schedule, Step};
use crate::world::{Group, Rank};

/// A collective of a vendor's (NCCL's, MPI's own), among the ranks of a phase's group.
///
/// What a vendor adds up, it adds up in an order of its own: the bits of a sum are then not those of the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VendorCall {
    /// A position of the group ends with the reduction of all chunks.
    Reduce {
        /// That position.
        root: Rank,
    },
    /// Each position ends with the reduction of its own part.
    ReduceScatter {
        /// The part of each position: one after the other, all chunks.
        parts: Vec<Chunks>,
    },
    /// Each position gives its own part and ends with all.
    AllGather {
        /// The part of each position: one after the other, all chunks.
        parts: Vec<Chunks>,
    },
    /// All positions end with all chunks of one.
    Broadcast {
        /// That position.
        root: Rank,
    },
}

impl VendorCall {
    /// Whether it brings results together, and does not spread them.
    pub fn is_inward(&self) -> bool {
        matches!(self, Self::Reduce { .. } | Self::ReduceScatter { .. })
    }
}

/// One part of a plan: a group of ranks that run a schedule among themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// What the phase does, for a person: "reduce in the node".
    pub name: &'static str,
    /// The ranks that take part; the schedule's ranks are positions in this group.
    pub group: Group,
    /// What this rank does in it.
    pub schedule: Schedule,
    /// What a vendor may do in place of the schedule, on every rank of the group or on none.
    pub vendor: Option<VendorCall>,
}

impl Phase {
    /// Whether it is inside of nodes: what a vendor may do is, and nothing else.
    pub fn is_in_node(&self) -> bool {
        self.vendor.is_some()
    }
}

/// What one rank does in one collective: phases in order, all over the same chunks of the same buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    chunk_count: usize,
    phases: Vec<Phase>,
}

impl Plan {
    /// A plan of these phases. Those in which this rank has nothing to do are left out.
    ///
    /// # Panics
    /// If a phase cuts the buffer into another number of chunks.
    pub fn new(chunk_count: usize, phases: impl IntoIterator<Item = Phase>) -> Self {
        let phases: Vec<_> = phases.into_iter().filter(|phase| !phase.schedule.steps().is_empty()).collect();
        for phase in &phases {
            assert_eq!(phase.schedule.chunk_count(), chunk_count, "phase {:?}", phase.name);
        }
        Self { chunk_count, phases }
    }

    /// A plan of a single phase in which all ranks of a world take part.
    pub fn single(name: &'static str, world: Group, schedule: Schedule) -> Self {
        Self::new(schedule.chunk_count(), [Phase { name, group: world, schedule, vendor: None }])
    }

    /// How many chunks the buffer is cut into; the same on every rank.
    pub fn chunk_count(&self) -> usize {
        self.chunk_count
    }

    /// The phases, in order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// All phases as one schedule among world ranks: what is verified, priced, drawn and simulated.
    pub fn flattened(&self) -> Schedule {
        let world = |phase: &Phase| {
            let group = phase.group.clone();
            phase.schedule.clone().renamed(move |position: Rank| group.member(position))
        };
        self.phases.iter().map(world).fold(Schedule::new(self.chunk_count, []), Schedule::then)
    }

    /// What is left to the schedules where vendors carry out all that they may, as a plan over the chunks that it touches;
    /// `None` if nothing is.
    pub fn without_vendors(&self) -> Option<(Chunks, Self)> {
        let ours = || self.phases.iter().filter(|phase| phase.vendor.is_none());
        let touched = ours().flat_map(|phase| phase.schedule.steps()).flat_map(Step::touched);
        let all = touched
            .reduce(|all, chunks| Chunks::new(all.start.min(chunks.start), all.end.max(chunks.end)))?;
        let moved = |phase: &Phase| {
            let schedule = phase.schedule.clone().refined(all.count(), |chunk| chunk - all.start);
            Phase { schedule, ..phase.clone() }
        };
        Some((all, Self::new(all.count(), ours().map(moved))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Operation, Topology, verify_schedules};

    fn plans(algorithm: Algorithm, topology: &Topology) -> Vec<Plan> {
        algorithm.plans(Operation::AllReduce, topology).unwrap()
    }

    #[test]
    fn a_vendor_may_do_what_the_steps_do() {
        for algorithm in [Algorithm::HierarchicalCopy, Algorithm::Rail] {
            for ranks in 2..9 {
                let plans = plans(algorithm, &Topology::single_node(ranks));
                for (number, phase) in plans[0].phases().iter().enumerate() {
                    let schedules: Vec<_> =
                        plans.iter().map(|plan| plan.phases()[number].schedule.clone()).collect();
                    let operation = match phase.vendor.as_ref().expect("in a node a vendor may do it all") {
                        VendorCall::Reduce { root } => Operation::Reduce { root: *root },
                        VendorCall::Broadcast { root } => Operation::Broadcast { root: *root },
                        VendorCall::ReduceScatter { .. } => Operation::ReduceScatter,
                        VendorCall::AllGather { .. } => Operation::AllGather,
                    };
                    assert_eq!(verify_schedules(&schedules, operation), [], "{algorithm}, {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn parts_are_one_after_the_other_and_whole() {
        for sizes in [&[3, 1][..], &[2, 5, 3], &[4, 4]] {
            let plans = plans(Algorithm::Rail, &Topology::from_node_sizes(sizes));
            for phase in plans.iter().flat_map(Plan::phases) {
                let Some(VendorCall::ReduceScatter { parts } | VendorCall::AllGather { parts }) =
                    &phase.vendor
                else {
                    continue;
                };
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
    fn between_nodes_nothing_is_left_to_vendors() {
        let topology = Topology::from_node_sizes(&[2, 1]);
        let rail = plans(Algorithm::Rail, &topology);
        // Two shards of two chunks: the second node's only rank holds both.
        let (chunks, ours) = rail[1].without_vendors().unwrap();
        assert_eq!((chunks, ours.chunk_count(), ours.phases().len()), (Chunks::new(2, 4), 2, 1));
        let (chunks, ours) = rail[2].without_vendors().unwrap();
        assert_eq!((chunks, ours.chunk_count(), ours.phases().len()), (Chunks::new(0, 4), 4, 2));

        let copy = plans(Algorithm::HierarchicalCopy, &topology);
        assert!(copy[0].without_vendors().is_some());
        assert_eq!(copy[1].without_vendors(), None);
    }
}
