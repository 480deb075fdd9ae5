//! Common properties of the plans of all ranks, derived from a sample of them.

use crate::algorithm::Algorithm;
use crate::direct::moves_directly;
use crate::operation::Operation;
use crate::plan::{Phase, Plan};
use crate::schedule::{Source, Step};
use crate::world::{Rank, Topology};

/// Properties of the plans of all ranks. Every rank derives them from the same sample, and gets the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits {
    /// Whether the operation only moves elements, each from its source directly to its destinations ([`moves_directly`]).
    pub moves_directly: bool,
    /// Whether each message is a single chunk, so that a block of it is contiguous.
    pub sends_single_chunks: bool,
    /// The number of steps between nodes, if all of them fit [lanes](super::Execution::Lanes).
    pub far_steps: Option<usize>,
}

impl Traits {
    /// The properties of an algorithm's plans, if it offers the operation.
    pub(super) fn of(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Self {
        let plans: Vec<_> = samples(topology)
            .into_iter()
            .filter_map(|rank| Some((rank, algorithm.plan(operation, topology, rank)?)))
            .collect();
        let has_levels = algorithm.descriptor().levels.is_some();
        Self {
            moves_directly: !operation.reduces() && moves_directly(algorithm, operation, topology),
            sends_single_chunks: plans.iter().all(|(_, plan)| sends_single_chunks(plan)),
            far_steps: has_levels.then(|| far_steps(&plans)).flatten(),
        }
    }
}

/// The ranks whose plans represent all: if the world is not a power of two, rank 0 and its node act for others; and no node has
/// more work inside than the largest one.
fn samples(topology: &Topology) -> Vec<Rank> {
    let nodes = (0..topology.nodes()).map(|node| topology.node(node));
    let largest = nodes.max_by_key(|node| (node.ranks(), std::cmp::Reverse(node.member(0))));
    let mut samples = vec![0];
    samples.extend(largest.map(|node| node.member(0)).filter(|&leader| leader != 0));
    samples
}

/// Both halves of a step count: a rank that sends one chunk may receive two.
fn sends_single_chunks(plan: &Plan) -> bool {
    let steps = plan.phases().iter().flat_map(|phase| phase.schedule.steps());
    steps.flat_map(Step::touched).all(|chunks| chunks.count() == 1)
}

/// The number of steps between nodes, if the plans fit lanes: all have the same number of these steps, which send the current contents of
/// the buffer, and no intra-node step sends what it receives into.
fn far_steps(plans: &[(Rank, Plan)]) -> Option<usize> {
    let phases = || plans.iter().flat_map(|(_, plan)| plan.phases());
    let steps = |phase: &Phase| phase.schedule.steps().len();
    let far_steps = phases().find(|phase| !phase.is_in_node()).map(steps)?;
    let is_apart = |step: &Step| match (step.send, step.receive) {
        (Some(send), Some(receive)) => !send.chunks.overlaps(receive.chunks),
        _ => true,
    };
    let is_current = |step: &Step| step.send.is_none_or(|send| send.source == Source::Current);
    let fits = |phase: &Phase| {
        let mut of_phase = phase.schedule.steps().iter();
        if phase.is_in_node() {
            of_phase.all(is_apart)
        } else {
            steps(phase) == far_steps && of_phase.all(is_current)
        }
    };
    phases().all(fits).then_some(far_steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct;

    /// The same, computed from the plans of all ranks.
    fn of_all(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Option<Traits> {
        let plans = algorithm.plans(operation, topology)?;
        let has_levels = algorithm.descriptor().levels.is_some();
        Some(Traits {
            moves_directly: !operation.reduces() && direct::testing::all_move_directly(&plans),
            sends_single_chunks: plans.iter().all(sends_single_chunks),
            far_steps: has_levels.then(|| far_steps_of_all(&plans)).flatten(),
        })
    }

    /// As [`far_steps`], where also both halves of a message have the same number of step.
    fn far_steps_of_all(plans: &[Plan]) -> Option<usize> {
        let numbered: Vec<_> = plans.iter().cloned().enumerate().collect();
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
        far_steps(&numbered)
    }

    #[test]
    fn a_few_plans_tell_of_all() {
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
                    let Some(all) = of_all(algorithm, operation, &topology) else { continue };
                    let seen = Traits::of(algorithm, operation, &topology);
                    assert_eq!(seen, all, "{algorithm}, {operation:?}, {topology:?}");
                }
            }
        }
    }
}
