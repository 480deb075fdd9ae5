//! The parts of plans that the clock needs, and the detection of ranks that represent others.

use super::Unpredictable;
use crate::model::Machine;
use crate::partition::Partition;
use crate::plan::Plan;
use crate::schedule::Source;
use crate::world::{Rank, Topology};

/// The limits of a simulation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The largest number of steps to simulate.
    played: usize,
    /// The approximate number of steps to compare, if there are too many ranks to simulate all.
    compared: usize,
}

/// About a second each, and some 100 MB.
pub(super) const LIMITS: Limits = Limits { played: 1 << 22, compared: 1 << 24 };

/// A step without its chunks. Other ranks are given by their distance from this one, around the world; so ranks that do the
/// same relative to their neighbours have equal outlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline {
    /// The distance to the rank that it sends to.
    pub(super) to: Option<u32>,
    /// The distance to the rank that it receives from.
    pub(super) from: Option<u32>,
    /// The number of elements sent.
    pub(super) sent_count: usize,
    /// Whether received elements are reduced.
    pub(super) reduces: bool,
    /// Whether elements to send are copied first, since the step also reduces into them.
    pub(super) copies: bool,
}

/// The maximum of each over all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Busiest {
    pub(super) steps: usize,
    pub(super) messages: usize,
    pub(super) sent_count: usize,
}

/// The steps of the simulated ranks. If these are fewer than all, rank r does the same as rank r modulo their number.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) topology: &'a Topology,
    /// The number of elements of an array.
    pub(super) count: usize,
    pub(super) played: Vec<Vec<Outline>>,
    pub(super) busiest: Busiest,
}

/// Whether the compared ranks do the same as those with the same local rank in the first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    No,
    /// Except for single elements, if the array is not divisible.
    Nearly,
    Exactly,
}

impl<'a> World<'a> {
    /// A world in which all ranks are simulated.
    pub(super) fn whole(plans: &[Plan], topology: &'a Topology, count: usize) -> Self {
        let mut world = Self { topology, count, played: Vec::new(), busiest: Busiest::default() };
        for (rank, plan) in plans.iter().enumerate() {
            let mut steps = Vec::new();
            outline(plan, rank, topology.ranks(), count, &mut steps);
            world.busiest.see(&steps);
            world.played.push(steps);
        }
        world
    }

    /// A world with the ranks of one node if they represent all others, and with all ranks otherwise. If they do so except
    /// for single elements, they are used only if there are too many ranks.
    ///
    /// `stride` is the shift under which the topology is invariant ([`Topology::stride`]); the number of ranks if no rank
    /// represents another.
    ///
    /// Only needed plans are kept. All are compared, or, if there are too many ranks for that too, those of sampled nodes.
    pub(super) fn folded(
        plan: impl Fn(Rank) -> Plan,
        topology: &'a Topology,
        stride: usize,
        count: usize,
        limits: Limits,
    ) -> Result<Self, Unpredictable> {
        let ranks = topology.ranks();
        let mut world = Self { topology, count, played: Vec::new(), busiest: Busiest::default() };
        let mut alike = if stride < ranks { Alike::Exactly } else { Alike::No };
        let mut seen = 0;
        let mut steps = Vec::new();
        let mut rank = 0;
        while rank < ranks {
            steps.clear();
            outline(&plan(rank), rank, ranks, count, &mut steps);
            world.busiest.see(&steps);
            if rank >= stride && alike > Alike::No {
                alike = alike.min(compare(&world.played[rank % stride], &steps));
            }
            seen += steps.len();
            let fits = seen <= limits.played;
            if !fits && (rank < stride || alike == Alike::No) {
                return Err(Unpredictable::TooManyMessages { more_than: limits.played });
            }
            if fits {
                world.played.push(steps.clone());
            } else {
                world.played.truncate(stride);
            }
            rank += 1;
            if !fits && rank.is_multiple_of(stride) {
                // Skips an even number of nodes, so that nodes at odd distances are compared: algorithms favour powers of
                // two.
                let left_out = (ranks * steps.len() / limits.compared).next_multiple_of(2);
                rank += stride * left_out;
            }
        }
        if alike == Alike::Exactly {
            world.played.truncate(stride);
        }
        Ok(world)
    }

    /// [`Machine::held_bytes`] on the largest node.
    pub(super) fn held_bytes(&self, machine: &Machine, element_size_bytes: usize) -> usize {
        machine.held_bytes(self.count * element_size_bytes, self.topology.ranks_of_largest_node())
    }

    /// How long a rank waits for its core after its message has arrived, on the largest of several nodes: until every other rank of
    /// that core has had a turn. (On a single node, turns are [simulated](super::turns).)
    pub(super) fn turn_us(&self, machine: &Machine) -> f64 {
        if self.topology.nodes() == 1 {
            return 0.0;
        }
        let on_core = self.topology.ranks_of_largest_node().div_ceil(machine.cores.max(1));
        on_core.saturating_sub(1) as f64 * machine.hand_over_us
    }

    /// The simulated rank that represents `rank`.
    pub(super) fn played(&self, rank: Rank) -> Rank {
        rank % self.played.len()
    }
}

impl Busiest {
    fn see(&mut self, steps: &[Outline]) {
        // A message to oneself costs nothing here.
        let sent = || steps.iter().filter(|step| step.to.is_some_and(|places| places > 0));
        self.steps = self.steps.max(steps.len());
        self.messages = self.messages.max(sent().count());
        self.sent_count = self.sent_count.max(sent().map(|step| step.sent_count).sum());
    }
}

/// Appends the steps of a rank's plan to `steps`.
fn outline(plan: &Plan, rank: Rank, ranks: usize, count: usize, steps: &mut Vec<Outline>) {
    let partition = Partition::fair(count, plan.chunk_count());
    for phase in plan.phases() {
        let places = |position: Rank| {
            let other = phase.group.member(position);
            let places = if other < rank { other + ranks - rank } else { other - rank };
            u32::try_from(places).expect("a world has fewer than 2^32 ranks")
        };
        let outline = phase.schedule.steps().iter().map(|step| Outline {
            to: step.send.map(|send| places(send.to)),
            from: step.receive.map(|receive| places(receive.from)),
            sent_count: step.send.map_or(0, |send| partition.elements(send.chunks).len()),
            reduces: step.receive.is_some_and(|receive| receive.combine.reduces()),
            copies: step.send.zip(step.receive).is_some_and(|(send, receive)| {
                send.source == Source::Current && send.chunks.overlaps(receive.chunks)
            }),
        });
        steps.extend(outline);
    }
}

fn compare(one: &[Outline], other: &[Outline]) -> Alike {
    if one == other {
        return Alike::Exactly;
    }
    let near = |(one, other): (&Outline, &Outline)| {
        one.sent_count.abs_diff(other.sent_count) <= 1
            && Outline { sent_count: one.sent_count, ..*other } == *one
    };
    let nearly = one.len() == other.len() && one.iter().zip(other).all(near);
    if nearly { Alike::Nearly } else { Alike::No }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{Algorithm, Operation};

    /// The number of simulated ranks.
    fn played(algorithm: Algorithm, topology: &Topology, count: usize) -> usize {
        let plan = algorithm.planner(Operation::AllReduce, topology).unwrap();
        World::folded(plan, topology, topology.stride(), count, LIMITS).unwrap().played.len()
    }

    #[test]
    fn nodes_that_do_the_same_are_played_once() {
        let world = Topology::uniform(5, 3);
        for algorithm in Algorithm::ALL {
            let expected = match algorithm {
                Algorithm::Ring | Algorithm::RoundRobin => 3,
                _ => 15,
            };
            assert_eq!(played(algorithm, &world, 15_000), expected, "{algorithm}");
        }
        assert_eq!(played(Algorithm::Ring, &Topology::single_node(15), 15_000), 1);
        assert_eq!(played(Algorithm::Ring, &Topology::from_node_sizes(&[3, 3, 4]), 10_000), 10);
    }

    #[test]
    fn an_uneven_array_is_played_whole_if_it_can_be() {
        assert_eq!(played(Algorithm::Ring, &Topology::uniform(5, 3), 15_001), 15);
        // 6 million messages.
        assert_eq!(played(Algorithm::Ring, &Topology::uniform(432, 4), 15_001), 4);
    }

    /// The number of ranks simulated with a small limit, and the plans that were compared.
    fn limited(
        plan: impl Fn(Rank) -> Plan,
        topology: &Topology,
    ) -> (Result<usize, Unpredictable>, Vec<Rank>) {
        let looked_at = RefCell::new(Vec::new());
        let look = |rank| {
            looked_at.borrow_mut().push(rank);
            plan(rank)
        };
        let limits = Limits { played: 1000, compared: 2000 };
        let world = World::folded(look, topology, topology.stride(), 4096, limits);
        (world.map(|world| world.played.len()), looked_at.into_inner())
    }

    #[test]
    fn of_a_very_large_world_a_part_is_looked_at() {
        let topology = Topology::uniform(32, 2);
        let plan = Algorithm::Ring.planner(Operation::AllReduce, &topology).unwrap();
        let (played, looked_at) = limited(&plan, &topology);
        // Eight plans of 126 steps are too many to play, and 64 four times too many to compare.
        assert_eq!((played, &looked_at[..10]), (Ok(2), &[0, 1, 2, 3, 4, 5, 6, 7, 16, 17][..]));
        // A single rank that does something else is detected.
        let odd_one_out = |rank| plan(if rank == 17 { 16 } else { rank });
        assert!(limited(odd_one_out, &topology).0.is_err());
    }

    #[test]
    fn what_cannot_be_played_is_refused_early() {
        let topology = Topology::uniform(32, 2);
        let plan = Algorithm::AllToAll.planner(Operation::AllReduce, &topology).unwrap();
        let (refused, looked_at) = limited(plan, &topology);
        assert_eq!(refused, Err(Unpredictable::TooManyMessages { more_than: 1000 }));
        assert!(looked_at.len() < 20, "{looked_at:?}");
    }
}
