//! Collectives of which it is known what their ranks do one after the other.

use super::fit::{Sample, Work};
use crate::tuning::Reach;
use crate::{Algorithm, Call, DType, Operation, ReduceOp};

/// An algorithm, and the call on an array of this many elements.
pub(super) type Way = (Algorithm, fn(usize) -> Call);

pub(super) fn all_reduce(count: usize) -> Call {
    Call::all_reduce(DType::F32, ReduceOp::Sum, count)
}

fn reduce_scatter(count: usize) -> Call {
    Call { operation: Operation::ReduceScatter, ..all_reduce(count) }
}

fn all_gather(count: usize) -> Call {
    Call { operation: Operation::AllGather, op: None, ..all_reduce(count) }
}

/// A collective, whether it is a single pass over shared memory, and what its ranks do in which time.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) way: Way,
    pub(super) array_bytes: usize,
    pub(super) is_pass: bool,
    pub(super) sample: Sample,
}

/// Returns collectives by messages of a size, and, where memory is shared, one by parts of that size in a single pass. `copies` is whether a
/// rank copies what it sends if it reduces into that meanwhile.
pub(super) fn steps(reach: Reach, ranks: usize, copies: bool, size_bytes: usize) -> Vec<Steps> {
    let (all_bytes, others) = (size_bytes * ranks, ranks - 1);
    let steps = |algorithm, call: fn(usize) -> Call, array_bytes, [messages, moved, reduced]: [usize; 3]| {
        let work = Work { messages, moved, reduced };
        let sample = Sample { size_bytes, time_us: f64::INFINITY, work };
        Steps { way: (algorithm, call), array_bytes, is_pass: false, sample }
    };
    let ring = steps(Algorithm::Ring, reduce_scatter, all_bytes, [others, 0, others]);
    if !reach.shares_memory() {
        return vec![ring, steps(Algorithm::Ring, all_gather, all_bytes, [others, others, 0])];
    }
    let (halvings, folds) = (ranks.ilog2() as usize, usize::from(!ranks.is_power_of_two()));
    let levels = halvings + folds;
    let doubling = [levels + folds, folds + if copies { halvings } else { 0 }, levels];
    // Operations that only move elements take no messages here. But the way back of a tree does, as many as its way there.
    let tree = [2 * levels, levels, levels];
    let pass = steps(Algorithm::RoundRobin, all_reduce, all_bytes, [others, 0, others]);
    vec![
        ring,
        Steps { is_pass: true, ..pass },
        steps(Algorithm::RecursiveDoubling, all_reduce, size_bytes, doubling),
        steps(Algorithm::Tree, all_reduce, size_bytes, tree),
    ]
}

/// Ways in which ranks wait for each other in different orders.
pub(super) const ORDERS: [Way; 5] = [
    (Algorithm::RecursiveDoubling, all_reduce),
    (Algorithm::Tree, all_reduce),
    (Algorithm::MasterWorker, all_reduce),
    (Algorithm::Butterfly, all_reduce),
    (Algorithm::Ring, all_reduce),
];
