//! The parts of programs that the clock needs, and the detection of ranks that represent others.

use std::num::NonZeroU32;

use super::Unpredictable;
use crate::partition::Partition;
use crate::program::{Incoming, Instruction, Outgoing, Part, Program};
use crate::schedule::Source;
use crate::world::{Rank, Topology};

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The largest number of steps to simulate.
    simulated: usize,
    /// The approximate number of steps to compare, if there are too many ranks to simulate all.
    compared: usize,
}

/// About a second each, and some 100 MB.
pub(super) const LIMITS: Limits = Limits { simulated: 1 << 22, compared: 1 << 24 };

/// An instruction without its parts. Other ranks are identified by their distance from this one around the world, so ranks with identical
/// steps relative to their neighbours have equal acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// The beginning of the call.
    Call,
    /// A copy of the whole array, whose original elements are needed later.
    Keep { count: usize },
    /// A message to another rank, from one, or both at once.
    Message(Halves),
    /// A barrier of all ranks.
    Sync,
    /// The accesses of a pass: the number of other ranks, and the number of elements accessed in the buffer of each.
    Pass { others: usize, count: usize },
}

/// A send and a receive, which the rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Halves {
    /// The distance to the receiving rank; the number of ranks for a message to itself.
    pub(super) to: Option<NonZeroU32>,
    /// The distance from the sending rank to this one.
    pub(super) from: Option<NonZeroU32>,
    pub(super) sent_count: usize,
    pub(super) reduces: bool,
    /// Whether elements to send are copied first, since the instruction also reduces into them.
    pub(super) copies: bool,
    /// Whether the elements to send are in such a copy, or in the copy of the whole array.
    pub(super) is_of_copy: bool,
    /// Whether the rank continues before the message that it sends has been received.
    pub(super) is_eager: bool,
    /// Whether it is a part of a step that a later receive completes.
    pub(super) is_part: bool,
}

/// The acts of the simulated ranks. If these are fewer than all, rank r has the acts of rank r modulo their number.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) topology: &'a Topology,
    pub(super) simulated: Vec<Vec<Act>>,
}

/// The similarity of ranks to those with the same local rank in the first node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Similarity {
    No,
    /// Except for single elements, if the array is not divisible.
    Nearly,
    Exactly,
}

impl<'a> World<'a> {
    /// Returns a world with the ranks of one node if they represent all others, and with all ranks otherwise. If they do
    /// so except for single elements, they are used only if there are too many ranks.
    ///
    /// `stride` is the shift under which the topology is invariant ([`Topology::stride`]); the number of ranks if no rank represents another.
    ///
    /// Only simulated ranks are kept. All ranks are compared, or those of sampled nodes if there are too many ranks for that too.
    pub(super) fn folded(
        mut program: impl FnMut(Rank) -> Program,
        topology: &'a Topology,
        stride: usize,
        count: usize,
        limits: Limits,
    ) -> Result<Self, Unpredictable> {
        let ranks = topology.ranks();
        let mut world = Self { topology, simulated: Vec::new() };
        let mut similarity = if stride < ranks { Similarity::Exactly } else { Similarity::No };
        let mut total = 0;
        let mut rank = 0;
        while rank < ranks {
            let acts = outline(&program(rank), (rank, ranks), count);
            let steps = acts.len();
            if rank >= stride && similarity > Similarity::No {
                similarity = similarity.min(compare(&world.simulated[rank % stride], &acts));
            }
            total += steps;
            let fits = total <= limits.simulated;
            if !fits && (rank < stride || similarity == Similarity::No) {
                return Err(Unpredictable::TooManyMessages { more_than: limits.simulated });
            }
            if fits {
                world.simulated.push(acts);
            } else {
                world.simulated.truncate(stride);
            }
            rank += 1;
            if !fits && rank.is_multiple_of(stride) {
                // Skips an even number of nodes, so that nodes at odd distances are compared, since algorithms favour powers of two.
                let skipped = (ranks * steps / limits.compared).next_multiple_of(2);
                rank += stride * skipped;
            }
        }
        if similarity == Similarity::Exactly {
            world.simulated.truncate(stride);
        }
        Ok(world)
    }
}

/// Returns the acts of a rank. The rounds are combined, with the elements of all.
fn outline(program: &Program, (rank, ranks): (Rank, usize), elements: usize) -> Vec<Act> {
    let partition = Partition::fair(elements, program.chunk_count);
    // (A swap moves one of two halves of a chunk in each direction, so as many elements move.)
    let count = |part: Part| partition.elements(part.chunks).len();
    let places = |from: Rank, to: Rank| {
        let places = if to <= from { to + ranks - from } else { to - from };
        NonZeroU32::new(u32::try_from(places).expect("a world has fewer than 2^32 ranks"))
    };
    let halves = |send: Option<Outgoing>, receive: Option<Incoming>| Halves {
        to: send.and_then(|send| places(rank, send.to)),
        from: receive.and_then(|receive| places(receive.from, rank)),
        sent_count: send.map_or(0, |send| count(send.part)),
        reduces: receive.is_some_and(|receive| receive.combine.reduces()),
        is_of_copy: send.is_some_and(|send| send.source == Source::Original),
        ..Halves::default()
    };
    let is_receive = |instruction: &Instruction| matches!(instruction, Instruction::Exchange(None, Some(_)));
    let receives = program.instructions.iter().filter(|(_, instruction)| is_receive(instruction));
    let receives: Vec<_> = receives.map(|(place, _)| (place.phase, place.step)).collect();
    let mut acts = Vec::with_capacity(program.instructions.len() + 1);
    acts.push(Act::Call);
    if program.reads_original() {
        acts.push(Act::Keep { count: elements });
    }
    // The other ranks of the current pass.
    let mut others = Vec::new();
    let mut instructions = program.instructions.iter().peekable();
    while let Some((place, instruction)) = instructions.next() {
        match *instruction {
            Instruction::Exchange(send, receive) => {
                let copies = send.zip(receive).is_some_and(|(send, receive)| {
                    send.source == Source::Current && send.part.chunks.overlaps(receive.part.chunks)
                });
                let halves = halves(send, receive);
                acts.push(Act::Message(Halves { copies, is_of_copy: copies || halves.is_of_copy, ..halves }));
            }
            Instruction::Send(send) => {
                // The receive of its step follows immediately, or later.
                let receive = match instructions.next_if(|(at, next)| at == place && is_receive(next)) {
                    Some((_, Instruction::Exchange(_, receive))) => *receive,
                    _ => None,
                };
                let is_part = receive.is_none() && receives.binary_search(&(place.phase, place.step)).is_ok();
                acts.push(Act::Message(Halves { is_eager: true, is_part, ..halves(Some(send), receive) }));
            }
            Instruction::Read { of: other, own, .. }
            | Instruction::Write { to: other, own, .. }
            | Instruction::Swap { with: other, own, .. } => others.push((other, count(own))),
            Instruction::Sync => {
                let count = others.iter().map(|&(_, count)| count).max();
                others.sort_unstable();
                others.dedup_by_key(|(other, _)| *other);
                acts.extend(count.map(|count| Act::Pass { others: others.len(), count }));
                others.clear();
                acts.push(Act::Sync);
            }
            Instruction::Lend { .. } => {}
            Instruction::Post(..) | Instruction::Complete | Instruction::Vendor { .. } => {
                unreachable!("a pipeline is predicted from one block, and a vendor not at all")
            }
        }
    }
    acts
}

fn compare(one: &[Act], other: &[Act]) -> Similarity {
    if one == other {
        return Similarity::Exactly;
    }
    let near = |(one, other): (&Act, &Act)| match (*one, *other) {
        (Act::Message(one), Act::Message(other)) => {
            one.sent_count.abs_diff(other.sent_count) <= 1
                && Halves { sent_count: one.sent_count, ..other } == one
        }
        (Act::Pass { others: one, count }, Act::Pass { others: other, count: other_count }) => {
            one == other && count.abs_diff(other_count) <= 1
        }
        (one, other) => one == other,
    };
    let nearly = one.len() == other.len() && one.iter().zip(other).all(near);
    if nearly { Similarity::Nearly } else { Similarity::No }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{Algorithm, Operation, Plan};

    /// Returns the number of simulated ranks.
    fn simulated(algorithm: Algorithm, topology: &Topology, count: usize) -> usize {
        let plan = algorithm.planner(Operation::AllReduce, topology).unwrap();
        let program = |rank| Program::of_plan(&plan(rank));
        World::folded(program, topology, topology.stride(), count, LIMITS).unwrap().simulated.len()
    }

    #[test]
    fn identical_nodes_are_simulated_once() {
        let world = Topology::uniform(5, 3);
        for algorithm in Algorithm::ALL {
            let expected = match algorithm {
                Algorithm::Ring | Algorithm::RoundRobin => 3,
                _ => 15,
            };
            assert_eq!(simulated(algorithm, &world, 15_000), expected, "{algorithm}");
        }
        assert_eq!(simulated(Algorithm::Ring, &Topology::single_node(15), 15_000), 1);
        assert_eq!(simulated(Algorithm::Ring, &Topology::from_node_sizes(&[3, 3, 4]), 10_000), 10);
    }

    #[test]
    fn uneven_array_is_simulated_whole_if_possible() {
        assert_eq!(simulated(Algorithm::Ring, &Topology::uniform(5, 3), 15_001), 15);
        // 6 million messages.
        assert_eq!(simulated(Algorithm::Ring, &Topology::uniform(432, 4), 15_001), 4);
    }

    /// Returns the number of ranks simulated with a small limit, and the plans that were compared.
    fn limited(
        plan: impl Fn(Rank) -> Plan,
        topology: &Topology,
    ) -> (Result<usize, Unpredictable>, Vec<Rank>) {
        let compared = RefCell::new(Vec::new());
        let program = |rank| {
            compared.borrow_mut().push(rank);
            Program::of_plan(&plan(rank))
        };
        let limits = Limits { simulated: 1000, compared: 2000 };
        let world = World::folded(program, topology, topology.stride(), 4096, limits);
        (world.map(|world| world.simulated.len()), compared.into_inner())
    }

    #[test]
    fn sampled_nodes_of_a_very_large_world_are_compared() {
        let topology = Topology::uniform(32, 2);
        let plan = Algorithm::Ring.planner(Operation::AllReduce, &topology).unwrap();
        let (simulated, compared) = limited(&plan, &topology);
        // Eight plans of 126 steps are too many to simulate, and 64 four times too many to compare.
        assert_eq!((simulated, &compared[..10]), (Ok(2), &[0, 1, 2, 3, 4, 5, 6, 7, 16, 17][..]));
        // A single rank that differs is detected.
        let odd_one_out = |rank| plan(if rank == 17 { 16 } else { rank });
        assert!(limited(odd_one_out, &topology).0.is_err());
    }

    #[test]
    fn oversized_simulation_is_refused_early() {
        let topology = Topology::uniform(32, 2);
        let plan = Algorithm::AllToAll.planner(Operation::AllReduce, &topology).unwrap();
        let (refused, compared) = limited(plan, &topology);
        assert_eq!(refused, Err(Unpredictable::TooManyMessages { more_than: 1000 }));
        assert!(compared.len() < 20, "{compared:?}");
    }
}
