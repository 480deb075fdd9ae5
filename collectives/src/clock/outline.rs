//! What the clock needs to know of plans, and which ranks stand for others.

use super::Unpredictable;
use crate::model::Machine;
use crate::partition::Partition;
use crate::plan::Plan;
use crate::schedule::{Combine, Source};
use crate::world::{Rank, Topology};

/// What is too much.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How many steps are played at most.
    played: usize,
    /// About how many steps are compared at most, once all ranks are too many to be played.
    compared: usize,
}

/// About a second each, and some 100 MB.
pub(super) const LIMITS: Limits = Limits { played: 1 << 22, compared: 1 << 24 };

/// A step without its chunks. Other ranks are named by how many places after this one they are, around the
/// world; so ranks that do the same to their own neighbours have equal outlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outline {
    /// The places from this rank to the one that it sends to.
    pub(super) to: Option<u32>,
    /// The places from this rank to the one that it receives from.
    pub(super) from: Option<u32>,
    /// How many elements are sent.
    pub(super) sent_count: usize,
    /// Whether what is received is reduced.
    pub(super) reduces: bool,
    /// Whether what is sent is copied first, since what is received is reduced into it.
    pub(super) copies: bool,
}

/// The most that any rank has to do of each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Busiest {
    pub(super) steps: usize,
    pub(super) messages: usize,
    pub(super) sent_count: usize,
}

/// The steps of the ranks that are played. If they are fewer than all, rank r does what rank r modulo their
/// number does.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) topology: &'a Topology,
    /// How many elements an array has.
    pub(super) count: usize,
    pub(super) played: Vec<Vec<Outline>>,
    pub(super) busiest: Busiest,
}

/// How far the ranks looked at do what those at the same place in the first node do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    No,
    /// But for an element here and there, where the array is not cut evenly.
    Nearly,
    Exactly,
}

impl<'a> World<'a> {
    /// All ranks.
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

    /// The ranks of one node if they stand for all others, and all ranks if not. Where they do so but for an
    /// element here and there, they do if all ranks are too many.
    ///
    /// `stride` is the number of places by which ranks can be moved ([`Topology::stride`]); all ranks if none stands for
    /// another.
    ///
    /// No plan is kept that need not be. Each is looked at, unless all ranks are too many to be played and to
    /// be compared too: then those of every so many nodes are.
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
                // An even number is left out, so that nodes at odd distances are seen: algorithms like powers
                // of two.
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

    /// How long a rank of the largest node of several waits for its core, once what it waits for has arrived: until every other rank
    /// of that core has had its turn. (In a world of one node, turns are [simulated](super::turns).)
    pub(super) fn turn_us(&self, machine: &Machine) -> f64 {
        if self.topology.nodes() == 1 {
            return 0.0;
        }
        let on_core = self.topology.ranks_of_largest_node().div_ceil(machine.cores.max(1));
        on_core.saturating_sub(1) as f64 * machine.hand_over_us
    }

    /// The one of the ranks that are played that stands for `rank`.
    pub(super) fn played(&self, rank: Rank) -> Rank {
        rank % self.played.len()
    }
}

impl Busiest {
    fn see(&mut self, steps: &[Outline]) {
        // What a rank sends itself goes nowhere.
        let sent = || steps.iter().filter(|step| step.to.is_some_and(|places| places > 0));
        self.steps = self.steps.max(steps.len());
        self.messages = self.messages.max(sent().count());
        self.sent_count = self.sent_count.max(sent().map(|step| step.sent_count).sum());
    }
}

/// Appends the steps of one rank's plan to `steps`.
fn outline(plan: &Plan, rank: Rank, ranks: usize, count: usize, steps: &mut Vec<Outline>) {
    let partition = Partition::new(count, plan.chunk_count());
    for phase in plan.phases() {
        let places = |position: Rank| {
            let other = phase.group.member(position);
            let places = if other < rank { other + ranks - rank } else { other - rank };
            u32::try_from(places).expect("a world has fewer than 2^32 ranks")
        };
        let outline = phase.schedule.steps().iter().map(|step| Outline {
            to: step.send.map(|send| places(send.to)),
            from: step.receive.map(|receive| places(receive.from)),
            sent_count: step.send.map_or(0, |send| partition.count(send.chunks)),
            reduces: step.receive.is_some_and(|receive| receive.combine == Combine::Reduce),
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

    /// How many ranks are played.
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

    /// How many ranks are played where little may be; and which plans are looked at.
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
        // One rank that does something else is enough.
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
