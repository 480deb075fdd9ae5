//! Collectives with a known sequence of messages on every rank.

use super::fit::Sample;
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

/// Returns collectives with messages of this size. Where memory is shared, it includes one that processes parts of this size in a single
/// pass. With `copies`, a rank copies data that it sends and reduces into at the same time.
pub(super) fn steps(reach: Reach, ranks: usize, copies: bool, size_bytes: usize) -> Vec<Steps> {
    let (all_bytes, others) = (size_bytes * ranks, ranks - 1);
    let reduce_scatter = |count: usize| Call { operation: Operation::ReduceScatter, ..all_reduce(count) };
    let all_gather = |count: usize| Call { operation: Operation::AllGather, op: None, ..all_reduce(count) };
    let steps = |algorithm, call: fn(usize) -> Call, array_bytes, [messages, moved, reduced]: [usize; 3]| {
        let sample = Sample { size_bytes, time_us: f64::INFINITY, messages, moved, reduced };
        Steps { timed: (algorithm, call), array_bytes, is_pass: false, sample }
    };
    let ring = steps(Algorithm::Ring, reduce_scatter, all_bytes, [others, 0, others]);
    if !reach.shares_memory() {
        return vec![ring, steps(Algorithm::Ring, all_gather, all_bytes, [others, others, 0])];
    }
    let (halvings, folds) = (ranks.ilog2() as usize, usize::from(!ranks.is_power_of_two()));
    let levels = halvings + folds;
    let doubling = [levels + folds, folds + if copies { halvings } else { 0 }, levels];
    // Operations that only move elements send no messages here, but a tree sends as many on its way down as on its way up.
    let tree = [2 * levels, levels, levels];
    let pass = steps(Algorithm::RoundRobin, all_reduce, all_bytes, [others, 0, others]);
    vec![
        ring,
        Steps { is_pass: true, ..pass },
        steps(Algorithm::RecursiveDoubling, all_reduce, size_bytes, doubling),
        steps(Algorithm::Tree, all_reduce, size_bytes, tree),
    ]
}

/// Collectives in which ranks wait for each other in different orders.
pub(super) const ORDERS: [TimedCall; 5] = [
    (Algorithm::RecursiveDoubling, all_reduce),
    (Algorithm::Tree, all_reduce),
    (Algorithm::MasterWorker, all_reduce),
    (Algorithm::Butterfly, all_reduce),
    (Algorithm::Ring, all_reduce),
];
