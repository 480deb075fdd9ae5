//! The exchanges of a compressed all-reduce as values, for predictions.

use unisono::Operation;

use super::Compression;
use super::power_sgd::PowerSgd;
use super::quantized::chunk;
use super::selection::load;
use super::sparse::Method;
use crate::kernels::quantized::{Code, Int4, Int8, OneBit};
use crate::kernels::sparse::Pair;

/// A collective among the leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) operation: Operation,
    pub(super) size_bytes: usize,
    pub(super) element_size_bytes: usize,
    /// The number of leaders that take part: all of them, or two partners.
    pub(super) leaders: usize,
}

impl Exchange {
    pub(super) fn new(
        operation: Operation,
        elements: usize,
        element_size_bytes: usize,
        leaders: usize,
    ) -> Self {
        Self { operation, size_bytes: elements * element_size_bytes, element_size_bytes, leaders }
    }
}

impl Compression {
    /// Returns the collectives by which this many leaders sum an array of tensors of these shapes: those that
    /// [`Compressor::all_reduce`](super::Compressor::all_reduce) calls, or the expected messages of recursive doubling. `None` if
    /// they depend on the values.
    pub(super) fn exchanges(self, shapes: &[&[usize]], leaders: usize) -> Option<Vec<Exchange>> {
        let count = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
        let f32s = |count| Exchange::new(Operation::AllReduce, count, size_of::<f32>(), leaders);
        match self {
            Self::Int8 | Self::Int8Stochastic => Some(of_chunks::<Int8>(count, leaders)),
            Self::Int4 | Self::Int4Stochastic => Some(of_chunks::<Int4>(count, leaders)),
            Self::OneBit => Some(of_chunks::<OneBit>(count, leaders)),
            Self::TopK { fraction } => {
                let load = load(fraction, count, leaders);
                let pair_bytes = size_of::<Pair>();
                let of_pairs =
                    |leaders, pairs| Exchange::new(Operation::AllGather, pairs, pair_bytes, leaders);
                Some(match load.method() {
                    Method::AllGather => vec![of_pairs(leaders, load.total)],
                    // An exchange of two partners costs as much as their all-gather.
                    Method::Doubling => {
                        let rounds = load.rounds().into_iter().map(|bytes| bytes as usize / pair_bytes);
                        rounds.map(|pairs| of_pairs(2, 2 * pairs)).collect()
                    }
                    Method::Dense => vec![f32s(count)],
                })
            }
            Self::Threshold { .. } => None,
            Self::PowerSgd { rank } => Some(PowerSgd::new(rank, shapes).sums().map(f32s).to_vec()),
        }
    }
}

fn of_chunks<C: Code>(count: usize, leaders: usize) -> Vec<Exchange> {
    let (_, chunk_bytes) = chunk::<C>(count, leaders);
    let by = |operation| Exchange::new(operation, leaders * chunk_bytes, 1, leaders);
    vec![by(Operation::AllToAll), by(Operation::AllGather)]
}
