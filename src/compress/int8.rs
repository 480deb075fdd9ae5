//! Eight bits an element.

use super::Encoder;
use crate::communicator::Communicator;
use crate::error::Result;
use crate::kernels::int8::{decode, decode_add, encode, encoded_bytes, is_finite};

/// Each leader sums a chunk: it gets the others' encoded, adds them as `f32`, encodes the sum, and gives it to all. So a value is
/// rounded twice, whatever the number of leaders.
///
/// Source of the two exchanges: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD: communication-efficient SGD via gradient
/// quantization and encoding", NeurIPS 2017, section 5.
#[derive(Debug, Default)]
pub(super) struct Int8 {
    /// A chunk for each leader, encoded.
    encoded: Vec<u8>,
}

impl Encoder for Int8 {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        let (own, ranks) = (leaders.rank(), leaders.ranks());
        let chunk_count = values.len().div_ceil(ranks);
        let chunk_bytes = encoded_bytes(chunk_count);
        self.encoded.resize(ranks * chunk_bytes, 0);
        let count = values.len();
        // The last ones may be shorter, or empty.
        let end = |rank: usize| (rank * chunk_count).min(count);
        let chunk = |rank: usize| end(rank)..end(rank + 1);
        let own_chunk = chunk(own);
        for (rank, encoded) in self.encoded.chunks_exact_mut(chunk_bytes).enumerate() {
            let (values, residual) = (&mut values[chunk(rank)], &mut residual[chunk(rank)]);
            values.iter_mut().zip(&mut *residual).for_each(|(value, residual)| *value += *residual);
            if rank != own {
                put(values, encoded);
                residual.copy_from_slice(values);
            }
        }
        leaders.all_to_all(&mut self.encoded)?;
        for (rank, encoded) in self.encoded.chunks_exact(chunk_bytes).enumerate() {
            if rank != own {
                let sum = &mut values[own_chunk.clone()];
                decode_add(sum, &encoded[..encoded_bytes(own_chunk.len())]);
            }
        }
        put(&mut values[own_chunk.clone()], &mut self.encoded[own * chunk_bytes..][..chunk_bytes]);
        residual[own_chunk.clone()].copy_from_slice(&values[own_chunk]);
        leaders.all_gather(&mut self.encoded)?;
        let mut all_finite = true;
        for (rank, encoded) in self.encoded.chunks_exact(chunk_bytes).enumerate() {
            let values = &mut values[chunk(rank)];
            let encoded = &encoded[..encoded_bytes(values.len())];
            all_finite &= is_finite(encoded);
            decode(values, encoded);
        }
        Ok(all_finite)
    }
}

/// Encodes values, and leaves what the encoding does not carry.
fn put(values: &mut [f32], encoded: &mut [u8]) {
    let encoded = &mut encoded[..encoded_bytes(values.len())];
    if encode(values, encoded).is_err() {
        // All scales are NaN.
        encoded.fill(u8::MAX);
    }
}
