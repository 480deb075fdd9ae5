//! Elements with the largest magnitudes: a fraction of them, or those that reach a threshold.

use unisono::{Communicator, ReduceOp, Result, copy};

use super::Encoder;
use super::sparse::{Load, Method, Pairs};
use crate::kernels::sparse::{Largest, Pair, count_from, encode_from};

/// Leaders sum their elements with the largest magnitudes. The sent bytes grow with the number of leaders, until sending all
/// elements is smaller.
///
/// Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
#[derive(Debug)]
pub(super) struct TopK {
    fraction: f64,
    largest: Largest,
    pairs: Pairs,
}

impl TopK {
    pub(super) fn new(fraction: f64) -> Self {
        Self { fraction, largest: Largest::default(), pairs: Pairs::default() }
    }
}

/// Returns the numbers of pairs that leaders send of an array of this many elements.
pub(super) fn load(fraction: f64, elements: usize, leaders: usize) -> Load {
    let most = ((fraction * elements as f64).ceil() as usize).min(elements);
    Load { elements, leaders, most, total: leaders * most }
}

impl Encoder for TopK {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let load = load(self.fraction, values.len(), leaders.ranks());
        let (method, own) = (load.method(), &mut self.pairs.own);
        if let Err(index) = self.largest.encode(residual, values, load.most, own) {
            // In an all-gather, all leaders send the same number of pairs.
            let count = if method == Method::AllGather { load.most } else { 1 };
            own.resize(count, Pair { index: index as u32, value: f32::NAN });
        }
        let counts = vec![load.most as u64; leaders.ranks()];
        self.pairs.sum(leaders, method, &counts, values)
    }
}

/// Leaders sum their elements whose magnitudes are at least this one, or all elements if that is smaller. Leaders have different
/// numbers of such elements, so they exchange the numbers first.
#[derive(Debug)]
pub(super) struct Threshold {
    least: f32,
    pairs: Pairs,
}

impl Threshold {
    pub(super) fn new(least: f32) -> Self {
        Self { least, pairs: Pairs::default() }
    }
}

impl Encoder for Threshold {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let (own, ranks) = (leaders.rank(), leaders.ranks());
        let mut counts = vec![0; ranks];
        counts[own] = count_from(residual, values, self.least) as u64;
        leaders.all_gather(&mut counts)?;
        let most = counts.iter().max().map_or(0, |&largest| largest as usize);
        let total = counts.iter().sum::<u64>() as usize;
        let method = Load { elements: values.len(), leaders: ranks, most, total }.method();
        if method == Method::Dense {
            // All elements fit.
            copy(values, residual);
            residual.fill(0.0);
            leaders.all_reduce(values, ReduceOp::Sum)?;
            return Ok(values.iter().all(|value| value.is_finite()));
        }
        encode_from(residual, self.least, &mut self.pairs.own);
        self.pairs.sum(leaders, method, &counts, values)
    }
}
