//! A few bits an element.

use std::fmt;
use std::marker::PhantomData;

use super::Encoder;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::quantized::{Code, decode, decode_add, encode, encoded_bytes, is_finite};

/// Each leader sums a chunk: it gets the others' encoded, adds them as `f32`, encodes the sum, and gives it to all. So a value is
/// rounded twice, whatever the number of leaders.
///
/// Source of the two exchanges: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient
/// quantization and encoding", NeurIPS 2017, section 5.
pub(super) struct Quantized<C> {
    /// A chunk for each leader, encoded.
    encoded: Vec<u8>,
    code: PhantomData<fn() -> C>,
}

impl<C> Quantized<C> {
    pub(super) fn new() -> Self {
        Self { encoded: Vec::new(), code: PhantomData }
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
                put::<C>(values, encoded);
                residual.copy_from_slice(values);
            }
        }
        leaders.all_to_all(&mut self.encoded)?;
        for (rank, encoded) in self.encoded.chunks_exact(chunk_bytes).enumerate() {
            if rank != own {
                let sum = &mut values[own_chunk.clone()];
                decode_add::<C>(sum, &encoded[..encoded_bytes::<C>(own_chunk.len())]);
            }
        }
        put::<C>(&mut values[own_chunk.clone()], &mut self.encoded[own * chunk_bytes..][..chunk_bytes]);
        residual[own_chunk.clone()].copy_from_slice(&values[own_chunk]);
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
}

/// The elements of the first chunk of so many elements, and its bytes: none has more.
pub(super) fn chunk<C: Code>(count: usize, ranks: usize) -> (usize, usize) {
    let chunk_count = count.div_ceil(ranks);
    (chunk_count, encoded_bytes::<C>(chunk_count))
}

/// Encodes values, and leaves what the encoding does not carry.
fn put<C: Code>(values: &mut [f32], encoded: &mut [u8]) {
    let encoded = &mut encoded[..encoded_bytes::<C>(values.len())];
    if encode::<C>(values, encoded).is_err() {
        // All scales are NaN.
        encoded.fill(u8::MAX);
    }
}
