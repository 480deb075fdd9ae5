//! A few bits an element.

use std::fmt;
use std::marker::PhantomData;

use unisono_collectives::Rank;

use super::Encoder;
use crate::communicator::Communicator;
use crate::error;
use crate::kernels::quantized::{
    Code, Dithered, decode, decode_add, encode, encode_stochastic, encoded_bytes, is_finite,
};

/// Each leader sums a chunk: it gets the others' encoded, adds them as `f32`, encodes the sum, and gives it to all. So a value is
/// rounded twice, whatever the number of leaders.
///
/// Source of the two exchanges: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient
/// quantization and encoding", NeurIPS 2017, section 5.
pub(super) struct Quantized<C> {
    /// A chunk for each leader, encoded.
    encoded: Vec<u8>,
    encode: Encode,
    /// How often this was called, for each tensor, where rounding is stochastic: each call rounds otherwise.
    calls: Vec<f32>,
    seed: u64,
    code: PhantomData<fn() -> C>,
}

/// Encodes values with a seed, and leaves in them what the encoding does not carry; or the index of the first that is not finite.
type Encode = fn(&mut [f32], &mut [u8], u32) -> Result<(), usize>;

/// From so many calls on, their numbers repeat: as `f32` they are exact.
const CALLS: f32 = (1 << 24) as f32;

impl<C: Code> Quantized<C> {
    pub(super) fn nearest() -> Self {
        let encode = |values: &mut [f32], encoded: &mut [u8], _| encode::<C>(values, encoded);
        Self { encoded: Vec::new(), encode, calls: Vec::new(), seed: 0, code: PhantomData }
    }

    /// Rounds up or down at random, for arrays of so many tensors.
    pub(super) fn stochastic(tensors: usize) -> Self
    where
        C: Dithered,
    {
        Self { encode: encode_stochastic::<C>, calls: vec![0.0; tensors], ..Self::nearest() }
    }

    /// The seed of what this leader encodes of a chunk.
    fn seed_of(&self, leader: Rank, chunk: Rank) -> u32 {
        let call = self.calls.first().map_or(0, |&call| call as u64);
        let parts = [self.seed, leader as u64, chunk as u64, call];
        parts.into_iter().fold(0, |seed, part| fastrand::Rng::with_seed(seed ^ part).u64(..)) as u32
    }

    /// Encodes a chunk.
    fn put(&self, values: &mut [f32], encoded: &mut [u8], seed: u32) {
        let encoded = &mut encoded[..encoded_bytes::<C>(values.len())];
        if (self.encode)(values, encoded, seed).is_err() {
            // All scales are NaN.
            encoded.fill(u8::MAX);
        }
    }
}

impl<C> fmt::Debug for Quantized<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quantized").finish_non_exhaustive()
    }
}

impl<C: Code> Encoder for Quantized<C> {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> error::Result<bool> {
        let (own, ranks) = (leaders.rank(), leaders.ranks());
        let (chunk_count, chunk_bytes) = chunk::<C>(values.len(), ranks);
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.resize(ranks * chunk_bytes, 0);
        let count = values.len();
        // The last ones may be shorter, or empty.
        let end = |rank: usize| (rank * chunk_count).min(count);
        let part = |rank: usize| end(rank)..end(rank + 1);
        let own_chunk = part(own);
        for (rank, encoded) in encoded.chunks_exact_mut(chunk_bytes).enumerate() {
            let (values, residual) = (&mut values[part(rank)], &mut residual[part(rank)]);
            values.iter_mut().zip(&mut *residual).for_each(|(value, residual)| *value += *residual);
            if rank != own {
                self.put(values, encoded, self.seed_of(own, rank));
                residual.copy_from_slice(values);
            }
        }
        leaders.all_to_all(&mut encoded)?;
        for (rank, encoded) in encoded.chunks_exact(chunk_bytes).enumerate() {
            if rank != own {
                let sum = &mut values[own_chunk.clone()];
                decode_add::<C>(sum, &encoded[..encoded_bytes::<C>(own_chunk.len())]);
            }
        }
        let own_encoded = &mut encoded[own * chunk_bytes..][..chunk_bytes];
        self.put(&mut values[own_chunk.clone()], own_encoded, self.seed_of(own, own));
        residual[own_chunk.clone()].copy_from_slice(&values[own_chunk]);
        leaders.all_gather(&mut encoded)?;
        let mut all_finite = true;
        for (rank, encoded) in encoded.chunks_exact(chunk_bytes).enumerate() {
            let values = &mut values[part(rank)];
            let encoded = &encoded[..encoded_bytes::<C>(values.len())];
            all_finite &= is_finite::<C>(encoded);
            decode::<C>(values, encoded);
        }
        self.encoded = encoded;
        self.calls.iter_mut().for_each(|call| *call = (*call + 1.0) % CALLS);
        Ok(all_finite)
    }

    fn state(&mut self) -> Vec<&mut [f32]> {
        self.calls.chunks_mut(1).collect()
    }

    fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }
}

/// The elements of the first chunk of so many elements, and its bytes: none has more.
pub(super) fn chunk<C: Code>(count: usize, ranks: usize) -> (usize, usize) {
    let chunk_count = count.div_ceil(ranks);
    (chunk_count, encoded_bytes::<C>(chunk_count))
}
