//! Formats with a few bits per element.

use std::fmt::Debug;
use std::marker::PhantomData;

use unisono::{Communicator, Rank, Result, copy};

use super::Encoder;
use crate::kernels::quantized::{Code, Draws, decode, decode_add, encode, encoded_bytes, is_finite};

/// Each leader sums a chunk: it receives the encoded chunks of the others, adds them as `f32`, encodes the sum, and sends it to
/// all. So a value is rounded twice, for any number of leaders.
///
/// Source of the two exchanges: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient
/// quantization and encoding", NeurIPS 2017, section 5.
#[derive(Debug)]
pub(super) struct Quantized<C> {
    /// A chunk for each leader, encoded.
    encoded: Vec<u8>,
    seed: u64,
    /// The number of calls, in digits of base [`DIGIT`], for each tensor. All are equal, and the first is read. Empty without stochastic
    /// rounding, whose random numbers differ for each seed, leader, chunk and call.
    calls: Vec<[f32; 2]>,
    code: PhantomData<fn() -> C>,
}

/// An `f32` represents all integers up to this one.
const DIGIT: u64 = 1 << 24;

impl<C: Code> Quantized<C> {
    pub(super) fn new(tensors: usize) -> Self {
        let tensors = if C::IS_STOCHASTIC { tensors } else { 0 };
        Self { encoded: Vec::new(), seed: 0, calls: vec![[0.0; 2]; tensors], code: PhantomData }
    }

    fn calls(&self) -> u64 {
        self.calls.first().map_or(0, |[low, high]| *low as u64 + *high as u64 * DIGIT)
    }
}

impl<C: Code + Debug> Encoder for Quantized<C> {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let (own, ranks) = (leaders.rank(), leaders.ranks());
        let (chunk_count, chunk_bytes) = chunk::<C>(values.len(), ranks);
        self.encoded.resize(ranks * chunk_bytes, 0);
        let (count, calls, seed) = (values.len(), self.calls(), self.seed);
        // Encodes this leader's values of a chunk, and leaves the residual in place.
        let put = |chunk: Rank, values: &mut [f32], encoded: &mut [u8]| {
            let draws = Draws::of(&[seed, own as u64, chunk as u64, calls]);
            let encoded = &mut encoded[..encoded_bytes::<C>(values.len())];
            if encode::<C>(values, encoded, draws).is_err() {
                // All scales are NaN.
                encoded.fill(u8::MAX);
            }
        };
        // The last ones may be shorter, or empty.
        let end = |rank: usize| (rank * chunk_count).min(count);
        let part = |rank: usize| end(rank)..end(rank + 1);
        let own_chunk = part(own);
        for (rank, encoded) in self.encoded.chunks_exact_mut(chunk_bytes).enumerate() {
            let (values, residual) = (&mut values[part(rank)], &mut residual[part(rank)]);
            values.iter_mut().zip(&mut *residual).for_each(|(value, residual)| *value += *residual);
            if rank != own {
                put(rank, values, encoded);
                copy(residual, values);
            }
        }
        leaders.all_to_all(&mut self.encoded)?;
        for (rank, encoded) in self.encoded.chunks_exact(chunk_bytes).enumerate() {
            if rank != own {
                let sum = &mut values[own_chunk.clone()];
                decode_add::<C>(sum, &encoded[..encoded_bytes::<C>(own_chunk.len())]);
            }
        }
        let own_encoded = &mut self.encoded[own * chunk_bytes..][..chunk_bytes];
        put(own, &mut values[own_chunk.clone()], own_encoded);
        self.calls.fill([((calls + 1) % DIGIT) as f32, ((calls + 1) / DIGIT) as f32]);
        copy(&mut residual[own_chunk.clone()], &values[own_chunk]);
        leaders.all_gather(&mut self.encoded)?;
        let mut all_finite = true;
        for (rank, encoded) in self.encoded.chunks_exact(chunk_bytes).enumerate() {
            let values = &mut values[part(rank)];
            let encoded = &encoded[..encoded_bytes::<C>(values.len())];
            all_finite &= is_finite::<C>(encoded);
            decode::<C>(values, encoded);
        }
        Ok(all_finite)
    }

    fn state(&mut self) -> Vec<&mut [f32]> {
        self.calls.iter_mut().map(<[f32; 2]>::as_mut_slice).collect()
    }

    fn seed(&mut self, seed: u64) {
        self.seed = seed;
    }
}

/// Returns the elements and the bytes of the first chunk, the largest one, of an array of this many elements.
pub(super) fn chunk<C: Code>(count: usize, ranks: usize) -> (usize, usize) {
    let chunk_count = count.div_ceil(ranks);
    (chunk_count, encoded_bytes::<C>(chunk_count))
}
