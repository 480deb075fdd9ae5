//! Formats with a few bits per element.

use std::fmt;
use std::marker::PhantomData;

use unisono::{Communicator, Rank, Result, copy};

use super::Encoder;
use crate::kernels::quantized::{
    Code, Draws, Stochastic, decode, decode_add, encode, encode_stochastic, encoded_bytes, is_finite,
};

/// Each leader sums a chunk: it receives the encoded chunks of the others, adds them as `f32`, encodes the sum, and sends it to
/// all. So a value is rounded twice, for any number of leaders.
///
/// Source of the two exchanges: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient
/// quantization and encoding", NeurIPS 2017, section 5.
pub(super) struct Quantized<C, R> {
    /// A chunk for each leader, encoded.
    encoded: Vec<u8>,
    rounding: R,
    code: PhantomData<fn() -> C>,
}

impl<C, R> Quantized<C, R> {
    pub(super) fn new(rounding: R) -> Self {
        Self { encoded: Vec::new(), rounding, code: PhantomData }
    }
}

/// A rounding of values, and its state.
pub(super) trait Rounding<C>: Send {
    /// Encodes this leader's values of a chunk, and leaves the residual in place.
    ///
    /// # Errors
    /// As [`encode`].
    fn encode(
        &self,
        of: (Rank, Rank),
        values: &mut [f32],
        encoded: &mut [u8],
    ) -> std::result::Result<(), usize>;

    /// Prepares for the next call.
    fn advance(&mut self) {}

    /// As [`Encoder::state`].
    fn state(&mut self) -> Vec<&mut [f32]> {
        Vec::new()
    }

    /// As [`Encoder::seed`].
    fn seed(&mut self, _: u64) {}
}

/// Rounding to the nearest value.
pub(super) struct Nearest;

impl<C: Code> Rounding<C> for Nearest {
    fn encode(
        &self,
        _: (Rank, Rank),
        values: &mut [f32],
        encoded: &mut [u8],
    ) -> std::result::Result<(), usize> {
        encode::<C>(values, encoded)
    }
}

/// Stochastic rounding to one of the two nearest values, with different random numbers for each seed, leader, chunk and call.
pub(super) struct AtRandom {
    seed: u64,
    /// The number of calls, in digits of base [`DIGIT`], for each tensor. All are equal, and the first is read.
    calls: Vec<[f32; 2]>,
}

/// An `f32` represents all integers up to this one.
const DIGIT: u64 = 1 << 24;

impl AtRandom {
    pub(super) fn new(tensors: usize) -> Self {
        Self { seed: 0, calls: vec![[0.0; 2]; tensors] }
    }

    fn calls(&self) -> u64 {
        self.calls.first().map_or(0, |[low, high]| *low as u64 + *high as u64 * DIGIT)
    }
}

impl<C: Stochastic> Rounding<C> for AtRandom {
    fn encode(
        &self,
        (leader, chunk): (Rank, Rank),
        values: &mut [f32],
        encoded: &mut [u8],
    ) -> std::result::Result<(), usize> {
        let draws = Draws::of(&[self.seed, leader as u64, chunk as u64, self.calls()]);
        encode_stochastic::<C>(values, encoded, draws)
    }

    fn advance(&mut self) {
        let calls = self.calls() + 1;
        self.calls.fill([(calls % DIGIT) as f32, (calls / DIGIT) as f32]);
    }

    fn state(&mut self) -> Vec<&mut [f32]> {
        self.calls.iter_mut().map(<[f32; 2]>::as_mut_slice).collect()
    }

    fn seed(&mut self, seed: u64) {
        self.seed = seed;
    }
}

impl<C, R> fmt::Debug for Quantized<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quantized").finish_non_exhaustive()
    }
}

impl<C: Code, R: Rounding<C>> Encoder for Quantized<C, R> {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let (own, ranks) = (leaders.rank(), leaders.ranks());
        let (chunk_count, chunk_bytes) = chunk::<C>(values.len(), ranks);
        self.encoded.resize(ranks * chunk_bytes, 0);
        let count = values.len();
        // The last ones may be shorter, or empty.
        let end = |rank: usize| (rank * chunk_count).min(count);
        let part = |rank: usize| end(rank)..end(rank + 1);
        let own_chunk = part(own);
        for (rank, encoded) in self.encoded.chunks_exact_mut(chunk_bytes).enumerate() {
            let (values, residual) = (&mut values[part(rank)], &mut residual[part(rank)]);
            values.iter_mut().zip(&mut *residual).for_each(|(value, residual)| *value += *residual);
            if rank != own {
                put::<C>(&self.rounding, (own, rank), values, encoded);
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
        put::<C>(&self.rounding, (own, own), &mut values[own_chunk.clone()], own_encoded);
        self.rounding.advance();
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
        self.rounding.state()
    }

    fn seed(&mut self, seed: u64) {
        self.rounding.seed(seed);
    }
}

/// Returns the elements and the bytes of the first chunk of an array of this many elements, the largest
/// chunk.
pub(super) fn chunk<C: Code>(count: usize, ranks: usize) -> (usize, usize) {
    let chunk_count = count.div_ceil(ranks);
    (chunk_count, encoded_bytes::<C>(chunk_count))
}

/// Encodes values, and leaves the residual in place.
fn put<C: Code>(rounding: &impl Rounding<C>, of: (Rank, Rank), values: &mut [f32], encoded: &mut [u8]) {
    let encoded = &mut encoded[..encoded_bytes::<C>(values.len())];
    if rounding.encode(of, values, encoded).is_err() {
        // All scales are NaN.
        encoded.fill(u8::MAX);
    }
}
