//! Detects schedules that can run in a single pass over shared memory.

use crate::algorithm::Algorithm;
use crate::operation::Operation;
use crate::schedule::{Chunks, Combine, Receive, Schedule, Send, Source};
use crate::world::{Rank, Topology};

/// The part of a rank in a *direct* all-reduce: it alone reduces its own chunks, from the inputs of all others, and all
/// others get the result from it.
///
/// If all ranks can access all buffers, this needs no messages: each rank reduces its own chunks of all buffers, in the
/// order of the schedule, and writes the result to all of them at once. The result is the same to the last bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direct {
    /// The chunks that each rank reduces, by rank: a partition.
    pub owned: Vec<Chunks>,
    /// The other ranks, in the order in which their inputs are reduced into this rank's own, and on which side.
    pub from: Vec<(Rank, Combine)>,
}

impl Direct {
    /// Recognises a schedule as rank `rank`'s part of a direct all-reduce over `ranks` ranks. (If it is direct for one rank,
    /// it is for all, provided that the schedules are correct.)
    ///
    /// ```
    /// use unisono_collectives::{Algorithm, Chunks, Combine, Direct, Operation, Topology};
    ///
    /// let direct = |algorithm: Algorithm, ranks| {
    ///     let plan = algorithm.plan(Operation::AllReduce, &Topology::single_node(ranks), 0).unwrap();
    ///     Direct::recognise(&plan.flattened(), 0, ranks)
    /// };
    /// let owned = (0..4).map(Chunks::one).collect();
    /// let from = [3, 2, 1].map(|rank| (rank, Combine::Reduce)).to_vec();
    /// assert_eq!(direct(Algorithm::RoundRobin, 4), Some(Direct { owned, from }));
    /// assert_eq!(direct(Algorithm::Ring, 4), None);
    /// // On two ranks, a ring has the same steps.
    /// assert_eq!(direct(Algorithm::Ring, 2), direct(Algorithm::RoundRobin, 2));
    /// ```
    pub fn recognise(schedule: &Schedule, rank: Rank, ranks: usize) -> Option<Self> {
        let steps = schedule.steps();
        let reduces = |receive: &Receive| receive.combine.reduces();
        let receives = || steps.iter().filter_map(|step| step.receive);
        let own = receives().find(reduces)?.chunks;
        let from: Vec<_> =
            receives().filter(reduces).map(|receive| (receive.from, receive.combine)).collect();
        let others: Vec<_> = from.iter().map(|(rank, _)| *rank).collect();

        // First all inputs, then all results: in each half, one message from and one to every other rank.
        let (inwards, outwards) = steps.split_at(steps.len() / 2);
        let half = from.len();
        let given: Vec<Send> = inwards.iter().filter_map(|step| step.send).collect();
        let results: Vec<Receive> = outwards.iter().filter_map(|step| step.receive).collect();
        let handed_out: Vec<Send> = outwards.iter().filter_map(|step| step.send).collect();
        let is_direct = half + 1 == ranks
            && inwards.len() == half
            && [given.len(), results.len(), handed_out.len(), outwards.len()] == [half; 4]
            && inwards.iter().filter_map(|step| step.receive).all(|receive| reduces(&receive) && receive.chunks == own)
            && !results.iter().any(reduces)
            && handed_out.iter().all(|send| send.chunks == own && send.source == Source::Current)
            && same_ranks(&others, handed_out.iter().map(|send| send.to))
            // Every rank gets its input where its result comes from, and nothing of this rank's own.
            && given.iter().all(|send| {
                !send.chunks.overlaps(own)
                    && results.iter().any(|result| (result.from, result.chunks) == (send.to, send.chunks))
            })
            && same_ranks(&others, given.iter().map(|send| send.to))
            && same_ranks(&others, results.iter().map(|result| result.from))
            && own.count() + results.iter().map(|result| result.chunks.count()).sum::<usize>() == schedule.chunk_count();
        let of = |owner: Rank| {
            let result = results.iter().find(|result| result.from == owner);
            if owner == rank { Some(own) } else { result.map(|result| result.chunks) }
        };
        let owned: Vec<_> = (0..ranks).map_while(of).collect();
        (is_direct && owned.len() == ranks).then_some(Self { owned, from })
    }
}

/// Whether an algorithm moves elements *directly* in an operation without reduction: from the rank that has them to the
/// ranks that need them, without forwarding.
///
/// If all ranks can access all buffers, this needs no messages either, and it does not matter which rank moves which part.
/// One rank's plan suffices to decide: the root's, or any rank's if there is no root.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, moves_directly};
///
/// let (two, four) = (Topology::single_node(2), Topology::single_node(4));
/// assert!(moves_directly(Algorithm::RoundRobin, Operation::AllGather, &four));
/// assert!(!moves_directly(Algorithm::Ring, Operation::AllGather, &four));
/// assert!(moves_directly(Algorithm::Ring, Operation::AllGather, &two));
/// ```
pub fn moves_directly(algorithm: Algorithm, operation: Operation, topology: &Topology) -> bool {
    let (rank, ranks) = (operation.root().unwrap_or(0), topology.ranks());
    let Some(plan) = algorithm.plan(operation, topology, rank) else { return false };
    let schedule = plan.flattened();
    let sends = schedule.steps().iter().filter_map(|step| step.send.map(|send| send.to));
    let receives = schedule.steps().iter().filter_map(|step| step.receive.map(|receive| receive.from));
    let others = || (0..ranks).filter(|&other| other != rank);
    // The ranks with which it would directly exchange something if it got all parts from others, or gave all parts to them.
    let (gives, takes) = match operation {
        Operation::Broadcast { .. } | Operation::Scatter { .. } => (true, false),
        Operation::Gather { .. } => (false, true),
        _ => (true, true),
    };
    sends_only_its_own(&schedule)
        && (!gives || same_ranks(&others().collect::<Vec<_>>(), sends))
        && (!takes || same_ranks(&others().collect::<Vec<_>>(), receives))
}

/// Whether a rank forwards nothing that it has received, and reduces nothing.
fn sends_only_its_own(schedule: &Schedule) -> bool {
    let mut received: Vec<Chunks> = Vec::new();
    schedule.steps().iter().all(|step| {
        let is_own = |send: &Send| {
            send.source == Source::Original || !received.iter().any(|chunks| chunks.overlaps(send.chunks))
        };
        let sends_own = step.send.as_ref().is_none_or(is_own);
        received.extend(step.receive.map(|receive| receive.chunks));
        sends_own && step.receive.is_none_or(|receive| receive.combine == Combine::Replace)
    })
}

/// Whether both contain the same ranks, each once.
fn same_ranks(ranks: &[Rank], others: impl Iterator<Item = Rank>) -> bool {
    let (mut ranks, mut others) = (ranks.to_vec(), others.collect::<Vec<_>>());
    ranks.sort_unstable();
    others.sort_unstable();
    ranks == others && ranks.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
pub(crate) mod testing {
    /// [`moves_directly`](super::moves_directly), asked of the plans of all ranks.
    pub(crate) fn all_move_directly(plans: &[crate::Plan]) -> bool {
        plans.iter().all(|plan| super::sends_only_its_own(&plan.flattened()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(algorithm: Algorithm, ranks: usize) -> Vec<Option<Direct>> {
        let plans = algorithm.plans(Operation::AllReduce, &Topology::single_node(ranks)).unwrap();
        let recognise =
            |(rank, plan): (Rank, &crate::Plan)| Direct::recognise(&plan.flattened(), rank, ranks);
        plans.iter().enumerate().map(recognise).collect()
    }

    #[test]
    fn round_robin_is_direct_in_every_world() {
        for ranks in 2..=20 {
            for direct in all(Algorithm::RoundRobin, ranks) {
                let Direct { owned, from } = direct.expect("round robin is direct");
                assert!(owned.into_iter().eq((0..ranks).map(Chunks::one)));
                assert_eq!(from.len(), ranks - 1);
            }
        }
    }

    #[test]
    fn an_algorithm_is_direct_for_all_ranks_or_for_none() {
        for algorithm in Algorithm::ALL {
            for ranks in 2..=16 {
                let direct = all(algorithm, ranks);
                assert!(
                    direct.iter().all(|rank| rank.is_some() == direct[0].is_some()),
                    "{algorithm}, {ranks}"
                );
                // On two ranks, all algorithms that send halves are the same.
                assert!(
                    ranks == 2 || direct[0].is_some() == (algorithm == Algorithm::RoundRobin),
                    "{algorithm}"
                );
            }
        }
    }

    #[test]
    fn who_sends_on_what_it_received_does_not_move_directly() {
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
                    let is_direct = direct.contains(&(algorithm, operation))
                        // A tree over three ranks has no rank between.
                        || (ranks, algorithm, operation) == (3, Algorithm::Tree, Operation::Broadcast { root: 2 });
                    assert_eq!(
                        moves_directly(algorithm, operation, &world),
                        is_direct,
                        "{algorithm}, {operation}, {ranks}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_ranks_agree_on_who_owns_what() {
        for algorithm in [Algorithm::Ring, Algorithm::Butterfly, Algorithm::DoubleTree, Algorithm::Rail] {
            let direct: Vec<_> = all(algorithm, 2).into_iter().flatten().collect();
            assert!(direct.windows(2).all(|pair| pair[0].owned == pair[1].owned), "{algorithm}");
        }
    }
}
