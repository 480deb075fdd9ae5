//! The elements from a magnitude on.

use super::Encoder;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::kernels::sparse::{Pair, count_from, decode_add, encode_from};

/// Every leader gives all others the elements of its own whose magnitudes are at least this one, or all leaders sum all elements if
/// that is less to send. Leaders have different numbers of them: so those are told first.
#[derive(Debug)]
pub(super) struct Threshold {
    least: f32,
    own: Vec<Pair>,
    /// Those of all leaders, each in as much room as the largest number of them takes.
    all: Vec<u64>,
}

impl Threshold {
    pub(super) fn new(least: f32) -> Self {
        Self { least, own: Vec::new(), all: Vec::new() }
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
        values.iter_mut().zip(&*residual).for_each(|(value, residual)| *value += residual);
        let mut counts = vec![0; ranks];
        counts[own] = count_from(values, self.least) as u64;
        leaders.all_gather(&mut counts)?;
        let room = counts.iter().max().map_or(0, |&largest| largest as usize);
        // A leader gets (ranks − 1) · room pairs, or 2 · (ranks − 1) / ranks of all elements, of half the size of a pair.
        if ranks * room >= values.len() {
            residual.fill(0.0);
            leaders.all_reduce(values, ReduceOp::Sum)?;
            return Ok(values.iter().all(|value| value.is_finite()));
        }
        encode_from(values, self.least, &mut self.own);
        residual.copy_from_slice(values);
        values.fill(0.0);
        if room == 0 {
            return Ok(true);
        }
        self.all.resize(ranks * room, 0);
        let place: &mut [Pair] = bytemuck::cast_slice_mut(&mut self.all[own * room..]);
        place[..self.own.len()].copy_from_slice(&self.own);
        leaders.all_gather(&mut self.all)?;
        let mut all_finite = true;
        for (pairs, count) in self.all.chunks_exact(room).zip(counts) {
            let pairs: &[Pair] = bytemuck::cast_slice(&pairs[..count as usize]);
            all_finite &= pairs.iter().all(|pair| pair.value.is_finite());
            decode_add(values, pairs);
        }
        Ok(all_finite)
    }
}
