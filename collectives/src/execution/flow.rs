//! The data flow of the plans of all ranks: the chunks that each rank reduces, and those that only move. Executions are derived from it.

use std::cmp::Reverse;

use crate::algorithm::Algorithm;
use crate::operation::Operation;
use crate::plan::{Phase, Plan};
use crate::schedule::{Chunks, Receive, Schedule, Send, Source, Step};
use crate::world::{Rank, Topology};

/// The properties of the data flow on which the execution depends, identical on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Flow {
    /// The chunks that each rank reduces, by rank, in a *direct* reduction: one rank alone reduces a chunk, from the inputs of all others,
    /// and sends the result to those that need it.
    ///
    /// If all ranks can access all buffers, this needs no messages: each rank reduces its own chunks of all buffers, in the
    /// order of its schedule, and writes the result where it is needed. The result is the same to the last bit.
    pub(super) owned: Option<Vec<Chunks>>,
    /// Whether the operation only moves elements, each from the rank that has it to those that need it, without forwarding. If all
    /// ranks access all buffers, it does not matter which of them moves which part.
    pub(super) moves_directly: bool,
    /// Whether each message is a single chunk, so that a block of it is contiguous.
    pub(super) sends_single_chunks: bool,
    /// The number of steps between nodes, if all of them fit a [pipeline](super::Execution::Pipelined).
    pub(super) far_steps: Option<usize>,
}

impl Flow {
    /// Returns the flow of an algorithm that offers the operation. A few plans represent those of all ranks: if the plans are correct, direct
    /// messages of these ranks imply direct messages of all.
    pub(super) fn of(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Self {
        let (ranks, root) = (topology.ranks(), operation.root().unwrap_or(0));
        let plan_of = |rank| algorithm.plan(operation, topology, rank);
        let plans: Vec<_> = samples(topology, root).filter_map(plan_of).collect();
        let messages = plans.first().map(|plan| Messages::of(&plan.flattened())).unwrap_or_default();
        let owned = messages.owned(operation, root, ranks);
        // The last rank may add in another way than by reducing into its own input.
        let owned_by_last =
            || Messages::of(&plan_of(ranks - 1)?.flattened()).owned(operation, ranks - 1, ranks);
        Self {
            owned: owned
                .filter(|owned| operation.root().is_some() || owned_by_last().as_ref() == Some(owned)),
            moves_directly: !operation.reduces() && messages.move_directly(operation, ranks),
            sends_single_chunks: plans.iter().all(sends_single_chunks),
            far_steps: algorithm.descriptor().levels.and_then(|_| far_steps(&plans)),
        }
    }
}

/// The messages of one rank's schedule, by their contents.
#[derive(Debug, Default)]
struct Messages {
    chunk_count: usize,
    /// Sends of the rank's unmodified input.
    inputs: Vec<(Rank, Chunks)>,
    /// Sends of other contents.
    results: Vec<(Rank, Chunks)>,
    reduced: Vec<(Rank, Chunks)>,
    replaced: Vec<(Rank, Chunks)>,
    /// Whether it reduces after a result has been sent.
    sends_partial_results: bool,
}

impl Messages {
    fn of(schedule: &Schedule) -> Self {
        let chunk_count = schedule.chunk_count();
        let mut messages = Self { chunk_count, ..Self::default() };
        let mut received = vec![false; chunk_count];
        for step in schedule.steps() {
            if let Some(Send { to, chunks, source }) = step.send {
                let is_input = source == Source::Original || !received[chunks.range()].contains(&true);
                let sends = if is_input { &mut messages.inputs } else { &mut messages.results };
                sends.push((to, chunks));
            }
            if let Some(Receive { from, chunks, combine }) = step.receive {
                received[chunks.range()].fill(true);
                messages.sends_partial_results |= combine.reduces() && !messages.results.is_empty();
                let receives = if combine.reduces() { &mut messages.reduced } else { &mut messages.replaced };
                receives.push((from, chunks));
            }
        }
        messages
    }

    /// Returns the chunks that each rank reduces, if these are the messages of rank `rank` (the root, if there is one) in a direct reduction: it
    /// sends its input to the ranks that reduce it, and otherwise only its own result.
    fn owned(&self, operation: Operation, rank: Rank, ranks: usize) -> Option<Vec<Chunks>> {
        let own = self.reduced.first()?.1;
        let with_own = |messages: &[(Rank, Chunks)]| {
            are_all_others(messages, ranks) && messages.iter().all(|(_, chunks)| *chunks == own)
        };
        let by_rank = |messages: &[(Rank, Chunks)]| {
            let mut messages = messages.to_vec();
            messages.sort_by_key(|(other, _)| *other);
            messages
        };
        let mut owned = by_rank(&self.inputs);
        let distributes = match operation {
            Operation::AllReduce => with_own(&self.results) && by_rank(&self.replaced) == owned,
            Operation::Reduce { .. } => self.results.is_empty() && by_rank(&self.replaced) == owned,
            Operation::ReduceScatter => self.results.is_empty() && self.replaced.is_empty(),
            _ => false,
        };
        let is_direct = distributes
            && with_own(&self.reduced)
            && !self.sends_partial_results
            && are_all_others(&owned, ranks);
        owned.insert(rank.min(owned.len()), (rank, own));
        let owned: Vec<_> = owned.into_iter().map(|(_, chunks)| chunks).collect();
        let is_partition = owned.iter().map(|chunks| chunks.count()).sum::<usize>() == self.chunk_count;
        (is_direct && is_partition).then_some(owned)
    }

    /// Returns whether elements move directly in an operation without reduction, given the messages of its root, or of any rank without one.
    fn move_directly(&self, operation: Operation, ranks: usize) -> bool {
        // Whether the rank sends a message to all other ranks, and receives one from all.
        let (sends, receives) = match operation {
            Operation::Broadcast { .. } | Operation::Scatter { .. } => (true, false),
            Operation::Gather { .. } => (false, true),
            _ => (true, true),
        };
        self.are_not_forwarded()
            && (!sends || are_all_others(&self.inputs, ranks))
            && (!receives || are_all_others(&self.replaced, ranks))
    }

    fn are_not_forwarded(&self) -> bool {
        self.results.is_empty() && self.reduced.is_empty()
    }
}

/// Returns whether there is one message from or to every other rank. (No message is from or to the rank itself.)
fn are_all_others(messages: &[(Rank, Chunks)], ranks: usize) -> bool {
    let mut others: Vec<_> = messages.iter().map(|(other, _)| *other).collect();
    others.sort_unstable();
    others.dedup();
    messages.len() + 1 == ranks && others.len() == messages.len()
}

/// Returns the ranks whose plans represent all, the root first. If the world is not a power of two, rank 0 and its node act for others. No
/// node has more work inside than the largest one.
fn samples(topology: &Topology, root: Rank) -> impl Iterator<Item = Rank> {
    let nodes = (0..topology.nodes()).map(|node| topology.node(node));
    let largest = nodes.max_by_key(|node| (node.ranks(), Reverse(node.member(0))));
    let leader = largest.map(|node| node.member(0));
    let mut samples = vec![root, 0];
    samples.extend(leader);
    samples.dedup();
    samples.into_iter()
}

/// Returns whether all messages of a plan are single chunks. Both halves of a step count, since a rank that sends one chunk may receive two.
fn sends_single_chunks(plan: &Plan) -> bool {
    let steps = plan.phases().iter().flat_map(|phase| phase.schedule.steps());
    steps.flat_map(Step::accessed).all(|chunks| chunks.count() == 1)
}

/// Returns the number of steps between nodes, if the plans fit a pipeline: all have the same number of these steps, which send the current
/// contents of the buffer, and no intra-node step sends chunks that it receives into.
fn far_steps(plans: &[Plan]) -> Option<usize> {
    let phases = || plans.iter().flat_map(Plan::phases);
    let steps = |phase: &Phase| phase.schedule.steps().len();
    let far_steps = phases().find(|phase| !phase.is_in_node()).map(steps)?;
    let is_disjoint = |step: &Step| {
        step.send.zip(step.receive).is_none_or(|(send, receive)| !send.chunks.overlaps(receive.chunks))
    };
    let is_current = |step: &Step| step.send.is_none_or(|send| send.source == Source::Current);
    let fits = |phase: &Phase| {
        let mut of_phase = phase.schedule.steps().iter();
        if phase.is_in_node() {
            of_phase.all(is_disjoint)
        } else {
            steps(phase) == far_steps && of_phase.all(is_current)
        }
    };
    phases().all(fits).then_some(far_steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(algorithm: Algorithm, operation: Operation, ranks: usize) -> Flow {
        Flow::of(algorithm, operation, &Topology::single_node(ranks))
    }

    #[test]
    fn round_robin_is_direct_in_every_world() {
        for ranks in 2..=20 {
            for operation in
                [Operation::AllReduce, Operation::ReduceScatter, Operation::Reduce { root: ranks / 2 }]
            {
                let owned = flow(Algorithm::RoundRobin, operation, ranks).owned;
                assert!(owned.expect("round robin is direct").into_iter().eq((0..ranks).map(Chunks::one)));
            }
        }
    }

    #[test]
    fn algorithm_is_direct_for_all_ranks_or_for_none() {
        for (algorithm, ranks) in
            Algorithm::ALL.into_iter().flat_map(|one| (2..=16).map(move |ranks| (one, ranks)))
        {
            for operation in [Operation::AllReduce, Operation::ReduceScatter] {
                let Some(plans) = algorithm.plans(operation, &Topology::single_node(ranks)) else { continue };
                let owned = |rank: Rank| Messages::of(&plans[rank].flattened()).owned(operation, rank, ranks);
                let of_all = flow(algorithm, operation, ranks).owned;
                let same = (0..ranks).all(|rank| owned(rank) == of_all);
                // Only rank 0 of this one begins with its own input.
                let is_only_for_0 = (algorithm, operation) == (Algorithm::AllToAll, Operation::ReduceScatter);
                assert!(same || is_only_for_0 && of_all.is_none(), "{algorithm}, {operation}, {ranks}");
                // On two ranks, all algorithms that send halves are equivalent.
                assert!(
                    ranks == 2 || of_all.is_some() == (algorithm == Algorithm::RoundRobin),
                    "{algorithm}"
                );
            }
        }
        assert!(flow(Algorithm::Ring, Operation::AllReduce, 2).owned.is_some());
    }

    #[test]
    fn algorithms_that_forward_do_not_move_directly() {
        let direct = [
            (Algorithm::RoundRobin, Operation::AllGather),
            (Algorithm::RoundRobin, Operation::AllToAll),
            (Algorithm::MasterWorker, Operation::Broadcast { root: 2 }),
            (Algorithm::MasterWorker, Operation::Gather { root: 2 }),
            (Algorithm::MasterWorker, Operation::Scatter { root: 2 }),
        ];
        for ranks in 3..=16 {
            let world = Topology::single_node(ranks);
            for algorithm in Algorithm::ALL {
                for operation in Operation::all(2) {
                    if algorithm.plan(operation, &world, 0).is_none() {
                        continue;
                    }
                    let moves_directly = direct.contains(&(algorithm, operation))
                        // A tree over three ranks has no intermediate rank.
                        || (ranks, algorithm, operation) == (3, Algorithm::Tree, Operation::Broadcast { root: 2 });
                    let found = flow(algorithm, operation, ranks).moves_directly;
                    assert_eq!(found, moves_directly, "{algorithm}, {operation}, {ranks}");
                }
            }
        }
    }

    /// Returns the last three fields of the flow, computed from the plans of all ranks.
    fn of_all(algorithm: Algorithm, operation: Operation, plans: &[Plan]) -> (bool, bool, Option<usize>) {
        let forwards_nothing = |plan: &Plan| Messages::of(&plan.flattened()).are_not_forwarded();
        let has_levels = algorithm.descriptor().levels.is_some();
        (
            !operation.reduces() && plans.iter().all(forwards_nothing),
            plans.iter().all(sends_single_chunks),
            has_levels.then(|| far_steps_of_all(plans)).flatten(),
        )
    }

    /// As [`far_steps`], but also checks that both halves of a message are in the step with the same number.
    fn far_steps_of_all(plans: &[Plan]) -> Option<usize> {
        let far = |plan: &Plan| plan.phases().iter().filter(|phase| !phase.is_in_node()).cloned().collect();
        let all: Vec<Vec<Phase>> = plans.iter().map(far).collect();
        for (rank, phases) in all.iter().enumerate() {
            for phase in phases {
                for (number, step) in phase.schedule.steps().iter().enumerate() {
                    let Some(send) = step.send else { continue };
                    let theirs = &all[phase.group.member(send.to)];
                    let answer = theirs.iter().find(|theirs| theirs.group == phase.group)?;
                    let receive = answer.schedule.steps().get(number)?.receive?;
                    let same = phase.group.member(receive.from) == rank;
                    if !same || receive.chunks.count() != send.chunks.count() {
                        return None;
                    }
                }
            }
        }
        far_steps(plans)
    }

    #[test]
    fn sampled_plans_represent_all() {
        let small = (1..=33).map(Topology::single_node);
        let even = (2..=9).flat_map(|nodes| (1..=5).map(move |local| Topology::uniform(nodes, local)));
        let uneven = [
            &[3, 1][..],
            &[1, 3],
            &[1, 2],
            &[2, 1],
            &[1, 1, 2],
            &[1, 2, 1],
            &[4, 4, 2],
            &[1, 5, 2, 3],
            &[2, 1, 1, 1],
            &[1, 1, 1, 1, 1, 2],
        ];
        let uneven = uneven.map(Topology::from_node_sizes);
        let scattered =
            [vec![0, 1, 0, 2, 1, 0, 2], vec![0, 1, 0, 1], vec![0, 1, 1, 0, 1]].map(Topology::from_node_of);
        for topology in small.chain(even).chain(uneven).chain(scattered) {
            for algorithm in Algorithm::ALL {
                for operation in Operation::all(topology.ranks() / 3) {
                    let Some(plans) = algorithm.plans(operation, &topology) else { continue };
                    let Flow { moves_directly, sends_single_chunks, far_steps, .. } =
                        Flow::of(algorithm, operation, &topology);
                    let sampled = (moves_directly, sends_single_chunks, far_steps);
                    let all = of_all(algorithm, operation, &plans);
                    assert_eq!(sampled, all, "{algorithm}, {operation:?}, {topology:?}");
                }
            }
        }
    }
}
