//! Plans for reductions that are associative but not commutative, which combine contributions in the order of ranks.

use std::collections::HashMap;

use crate::operation::Operation;
use crate::plan::Plan;
use crate::program::{Event, Interpreter, Program, Values};
use crate::schedule::Combine;
use crate::verify::required;
use crate::world::Rank;

/// Chooses the left operand of each reduction in the plans of all ranks (rank 0's first), so that each result is x0 ∘ x1 ∘ … in the order of
/// ranks. `None` if there is a reduction for which neither side keeps that order.
///
/// The plans are assumed correct ([`verify`](crate::verify())).
pub(crate) fn in_rank_order(mut plans: Vec<Plan>, operation: Operation) -> Option<Vec<Plan>> {
    let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
    let input = |rank: Rank| vec![Some((rank, rank + 1)); plans[rank].chunk_count()];
    let inputs = (0..plans.len()).map(input).collect();
    let mut runs = Runs { sides: HashMap::new(), is_consistent: true };
    let buffers = Interpreter::run(&programs, &mut runs, inputs).buffers;
    let is_in_order = |(rank, buffer): (Rank, &Vec<Option<(Rank, Rank)>>)| {
        buffer.iter().enumerate().all(|(chunk, run)| {
            let expected = required(operation, plans.len(), rank, chunk);
            expected.is_none_or(|(_, ranks)| *run == Some((ranks.start, ranks.end)))
        })
    };
    let keeps_order = runs.is_consistent && buffers.iter().enumerate().all(is_in_order);
    for (rank, plan) in plans.iter_mut().enumerate() {
        let receives =
            plan.steps_mut().enumerate().filter_map(|(step, it)| Some((step, it.receive.as_mut()?)));
        for (step, receive) in receives {
            receive.combine = runs.sides.get(&(rank, step)).copied().unwrap_or(receive.combine);
        }
    }
    keeps_order.then_some(plans)
}

/// Values are ranges of contributors: the first one, and one past the last one. `None` if contributors are missing in the range, or were
/// combined in another order.
struct Runs {
    /// The side of the received operand with which each reduction of a rank, by the number of its step, keeps the order.
    sides: HashMap<(Rank, usize), Combine>,
    /// Whether the side of each reduction is the same for all chunks.
    is_consistent: bool,
}

impl Values for Runs {
    type Value = Option<(Rank, Rank)>;

    fn reduce(&mut self, Event { rank, step, .. }: Event, held: &mut Self::Value, arrived: &Self::Value) {
        let joined = match (*held, *arrived) {
            (Some((start, middle)), Some((next, end))) if middle == next => {
                Some(((start, end), Combine::Reduce))
            }
            (Some((next, end)), Some((start, middle))) if middle == next => {
                Some(((start, end), Combine::ReduceBefore))
            }
            _ => None,
        };
        if let Some((_, side)) = joined {
            self.is_consistent &= *self.sides.entry((rank, step)).or_insert(side) == side;
        }
        *held = joined.map(|(run, _)| run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Topology, program, verify};

    fn in_order(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Option<Vec<Plan>> {
        in_rank_order(algorithm.plans(operation, topology)?, operation)
    }

    /// Concatenates strings of up to 16 hexadecimal digits, whose first digit is not 0.
    fn concatenated(left: u64, right: u64) -> u64 {
        let digits = right.checked_ilog2().map_or(0, |bit| bit / 4 + 1);
        left << (4 * digits) | right
    }

    #[test]
    fn strings_are_concatenated_in_the_order_of_ranks() {
        let nodes = [Topology::uniform(2, 2), Topology::from_node_sizes(&[3, 1]), Topology::uniform(4, 3)];
        for topology in (1..=9).map(Topology::single_node).chain(nodes) {
            let ranks = topology.ranks();
            let inputs: Vec<_> = (0..ranks).map(|rank| vec![rank as u64 + 1; 2 * ranks]).collect();
            for operation in Operation::all(ranks / 2).into_iter().filter(|operation| operation.reduces()) {
                let mut keep = 0;
                for algorithm in Algorithm::ALL {
                    let Some(plans) = in_order(algorithm, operation, &topology) else { continue };
                    let what = format!("{algorithm}, {operation}, {topology:?}");
                    keep += 1;
                    assert_eq!(verify(&plans, operation), [], "{what}");
                    let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
                    let results = program::run(&programs, &inputs, concatenated).unwrap();
                    for (rank, result) in results.iter().enumerate() {
                        for (index, &found) in result.iter().enumerate() {
                            let chunk = index * plans[0].chunk_count() / (2 * ranks);
                            let Some((_, contributors)) = required(operation, ranks, rank, chunk) else {
                                continue;
                            };
                            let expected = contributors.map(|rank| rank as u64 + 1).fold(0, concatenated);
                            assert_eq!(found, expected, "{what}, rank {rank}, element {index}");
                        }
                    }
                }
                assert!(keep > 0, "no algorithm keeps the order of {operation}, {topology:?}");
            }
        }
    }

    #[test]
    fn algorithms_that_change_the_order_are_rejected() {
        let keeps = |algorithm, operation, ranks| {
            in_order(algorithm, operation, &Topology::single_node(ranks)).is_some()
        };
        for ranks in 3..=17 {
            assert!(!keeps(Algorithm::Ring, Operation::AllReduce, ranks));
            assert!(!keeps(Algorithm::RoundRobin, Operation::ReduceScatter, ranks));
            assert!(keeps(Algorithm::RecursiveDoubling, Operation::AllReduce, ranks));
            assert!(keeps(Algorithm::AllToAll, Operation::ReduceScatter, ranks));
            assert!(keeps(Algorithm::AllToAll, Operation::Reduce { root: ranks - 2 }, ranks));
            assert!(keeps(Algorithm::Ring, Operation::Scan, ranks));
        }
        // Two ranks have only one order.
        assert!(keeps(Algorithm::Ring, Operation::AllReduce, 2));
    }
}
