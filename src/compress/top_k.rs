//! The largest elements alone.

use super::Encoder;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::sparse::{Pair, decode_add, encode};

/// Every leader gives all others the elements of its own with the largest magnitudes. So what is sent grows with the number of leaders.
///
/// Source: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017.
#[derive(Debug)]
pub(super) struct TopK {
    fraction: f64,
    own: Vec<Pair>,
    /// Those of all leaders.
    all: Vec<u64>,
}

impl TopK {
    pub(super) fn new(fraction: f64) -> Self {
        Self { fraction, own: Vec::new(), all: Vec::new() }
    }
}

/// How many of so many elements are sent.
pub(super) fn share(fraction: f64, count: usize) -> usize {
    ((fraction * count as f64).ceil() as usize).min(count)
}

impl Encoder for TopK {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let count = share(self.fraction, values.len());
        values.iter_mut().zip(&*residual).for_each(|(value, residual)| *value += residual);
        if let Err(index) = encode(values, count, &mut self.own) {
            self.own.clear();
            self.own.resize(count, Pair { index: index as u32, value: f32::NAN });
        }
        residual.copy_from_slice(values);
        self.all.resize(leaders.ranks() * count, 0);
        let place = &mut self.all[leaders.rank() * count..][..count];
        bytemuck::cast_slice_mut(place).copy_from_slice(&self.own);
        leaders.all_gather(&mut self.all)?;
        let pairs: &[Pair] = bytemuck::cast_slice(&self.all);
        values.fill(0.0);
        decode_add(values, pairs);
        Ok(pairs.iter().all(|pair| pair.value.is_finite()))
    }
}
