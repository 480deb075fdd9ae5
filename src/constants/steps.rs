//! Collectives with a known sequence of messages on every rank.

use super::MIN_BYTES;
use super::fit::Sample;
use crate::transport::EAGER_BYTES;
use crate::tuning::Reach;
use crate::{Algorithm, Call, DType, Operation, ReduceOp};

/// An algorithm, and a function from the number of elements to the call.
pub(super) type TimedCall = (Algorithm, fn(usize) -> Call);

pub(super) fn all_reduce(count: usize) -> Call {
    Call::all_reduce(DType::F32, ReduceOp::Sum, count)
}

/// A collective to measure, and the work of its ranks.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) timed: TimedCall,
    pub(super) array_bytes: usize,
    pub(super) is_pass: bool,
    pub(super) sample: Sample,
}

/// Returns collectives with messages of this size. Where memory is shared, messages are whole arrays, and one collective processes an array of
/// this size in a single pass.
pub(super) fn steps(reach: Reach, ranks: usize, size_bytes: usize) -> Vec<Steps> {
    let others = ranks - 1;
    let all_gather = |count: usize| Call { operation: Operation::AllGather, op: None, ..all_reduce(count) };
    let reduce_scatter = |count: usize| Call { operation: Operation::ReduceScatter, ..all_reduce(count) };
    let reduce = |count: usize| Call { operation: Operation::Reduce { root: 0 }, ..all_reduce(count) };
    let steps = |algorithm, call: fn(usize) -> Call, array_bytes, [messages, moved, reduced]: [usize; 3]| {
        let sample = Sample { size_bytes, time_us: f64::INFINITY, messages, moved, reduced };
        Steps { timed: (algorithm, call), array_bytes, is_pass: false, sample }
    };
    if !reach.shares_memory() {
        let ring = |call, work| steps(Algorithm::Ring, call, size_bytes * ranks, work);
        return vec![ring(reduce_scatter, [others, 0, others]), ring(all_gather, [others, others, 0])];
    }
    let folds = usize::from(!ranks.is_power_of_two());
    let levels = ranks.ilog2() as usize + folds;
    // A rank copies data that it sends and reduces into at the same time. The time of a short message includes this copy.
    let copies = if size_bytes > EAGER_BYTES { levels - folds } else { 0 };
    let doubling = [levels + folds, folds + copies, levels];
    let whole = |algorithm, call, work| steps(algorithm, call, size_bytes, work);
    // Operations that only move elements send no messages here, but a tree sends as many on its way down as on its way up.
    let mut all = vec![
        whole(Algorithm::Tree, reduce, [levels, 0, levels]),
        whole(Algorithm::Tree, all_reduce, [2 * levels, levels, levels]),
        whole(Algorithm::RecursiveDoubling, all_reduce, doubling),
    ];
    let part_bytes = size_bytes / ranks;
    if part_bytes >= MIN_BYTES {
        let pass = whole(Algorithm::RoundRobin, all_reduce, [others, 0, others]);
        all.push(Steps { is_pass: true, sample: Sample { size_bytes: part_bytes, ..pass.sample }, ..pass });
    }
    all
}

/// Collectives in which ranks wait for each other in different orders.
pub(super) const ORDERS: [TimedCall; 5] = [
    (Algorithm::RecursiveDoubling, all_reduce),
    (Algorithm::Tree, all_reduce),
    (Algorithm::MasterWorker, all_reduce),
    (Algorithm::Butterfly, all_reduce),
    (Algorithm::Ring, all_reduce),
];

#[cfg(test)]
mod tests {
    use super::super::effort::THOROUGH;
    use super::*;

    #[test]
    fn array_of_a_measurement_holds_all_its_messages() {
        for reach in Reach::ALL {
            for ranks in 2..70 {
                let all = steps(reach, ranks, THOROUGH.largest_bytes(reach, ranks));
                let most_bytes = all.iter().map(|steps| steps.array_bytes).max();
                assert!(most_bytes <= Some(THOROUGH.array_bytes(reach, ranks)), "{reach:?}, {ranks} ranks");
            }
        }
    }
}
