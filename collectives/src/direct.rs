//! Schedules that can be carried out in one pass where memory is shared.

use crate::schedule::{Chunks, Combine, Receive, Schedule, Send, Source};
use crate::world::Rank;

/// What a rank does in a *direct* all-reduce: it alone reduces its own chunks, from the inputs of all others, and
/// all others get the result from it.
///
/// Where all buffers can be reached by all ranks, this needs no messages: each rank reduces its own chunks of all
/// buffers, in the order of the schedule, and writes the result to all of them at once. The result is the
/// same to the last bit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direct {
    /// The chunks that each rank reduces, by rank: a partition.
    pub owned: Vec<Chunks>,
    /// The other ranks, in the order in which their inputs are added to this rank's own.
    pub from: Vec<Rank>,
}

impl Direct {
    /// What rank `rank`'s part of an all-reduce over `ranks` ranks is as a direct one, if it is one. (If it is for one rank, it is for
    /// all, provided that the schedules are right.)
    ///
    /// ```
    /// use unisono_collectives::{Algorithm, Chunks, Direct, Operation, Topology};
    ///
    /// let direct = |algorithm: Algorithm, ranks| {
    ///     let plan = algorithm.plan(Operation::AllReduce, &Topology::single_node(ranks), 0).unwrap();
    ///     Direct::recognise(&plan.flattened(), 0, ranks)
    /// };
    /// let owned = (0..4).map(Chunks::one).collect();
    /// assert_eq!(direct(Algorithm::RoundRobin, 4), Some(Direct { owned, from: vec![3, 2, 1] }));
    /// assert_eq!(direct(Algorithm::Ring, 4), None);
    /// // Of two ranks, a ring has the same steps.
    /// assert_eq!(direct(Algorithm::Ring, 2), direct(Algorithm::RoundRobin, 2));
    /// ```
    pub fn recognise(schedule: &Schedule, rank: Rank, ranks: usize) -> Option<Self> {
        let steps = schedule.steps();
        let reduces = |receive: &Receive| receive.combine == Combine::Reduce;
        let receives = || steps.iter().filter_map(|step| step.receive);
        let own = receives().find(reduces)?.chunks;
        let from: Vec<_> = receives().filter(reduces).map(|receive| receive.from).collect();

        // First all inputs, then all results: of both, one from each other rank and one to each.
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
            && same_ranks(&from, handed_out.iter().map(|send| send.to))
            // Every rank gets its input where its result comes from, and nothing of this rank's own.
            && given.iter().all(|send| {
                !send.chunks.overlaps(own)
                    && results.iter().any(|result| (result.from, result.chunks) == (send.to, send.chunks))
            })
            && same_ranks(&from, given.iter().map(|send| send.to))
            && same_ranks(&from, results.iter().map(|result| result.from))
            && own.count() + results.iter().map(|result| result.chunks.count()).sum::<usize>() == schedule.chunk_count();
        let of = |owner: Rank| {
            let result = results.iter().find(|result| result.from == owner);
            if owner == rank { Some(own) } else { result.map(|result| result.chunks) }
        };
        let owned: Vec<_> = (0..ranks).map_while(of).collect();
        (is_direct && owned.len() == ranks).then_some(Self { owned, from })
    }
}

/// Whether both name the same ranks, each once.
fn same_ranks(ranks: &[Rank], others: impl Iterator<Item = Rank>) -> bool {
    let (mut ranks, mut others) = (ranks.to_vec(), others.collect::<Vec<_>>());
    ranks.sort_unstable();
    others.sort_unstable();
    ranks == others && ranks.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Operation, Topology};

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
                // Of two ranks, all that send halves are the same algorithm.
                assert!(
                    ranks == 2 || direct[0].is_some() == (algorithm == Algorithm::RoundRobin),
                    "{algorithm}"
                );
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
