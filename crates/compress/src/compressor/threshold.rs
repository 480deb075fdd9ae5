//! Elements whose magnitudes reach a threshold.

use unisono::{Communicator, ReduceOp, Result, copy};

use super::Encoder;
use super::sparse::{Doubling, Load, Method, all_gather};
use crate::kernels::sparse::{Pair, count_from, encode_from};

/// Leaders sum their elements whose magnitudes are at least this one, or all elements if that is smaller. Leaders have different
/// numbers of such elements, so they exchange the numbers first.
#[derive(Debug)]
pub(super) struct Threshold {
    least: f32,
    own: Vec<Pair>,
    /// The pairs of all leaders, for an all-gather: each leader has space for the largest number of pairs.
    all: Vec<u64>,
    doubling: Doubling,
}

impl Threshold {
    pub(super) fn new(least: f32) -> Self {
        Self { least, own: Vec::new(), all: Vec::new(), doubling: Doubling::default() }
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
        encode_from(residual, self.least, &mut self.own);
        if method == Method::Doubling {
            return self.doubling.sum(leaders, &self.own, values);
        }
        all_gather(leaders, &self.own, &counts, &mut self.all, values)
    }
}
