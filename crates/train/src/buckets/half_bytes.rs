//! Gradients in half the bytes.

use bytemuck::{cast_slice, cast_slice_mut};
use unisono::DType;
use unisono::internals::Codec;

/// The number of gradients that are scaled and converted at a time: so many stay in the core's cache in
/// between.
pub(super) const BLOCK: usize = 1024;
/// The bytes of a number in a half-precision format.
const BYTES: usize = 2;

/// Scales gradients, and rounds them to a half-precision format.
#[derive(Debug)]
pub struct HalfBytes {
    codec: Codec,
    /// A power of two.
    scale: f32,
}

impl HalfBytes {
    pub(super) fn new(dtype: DType, scale: f32) -> Self {
        Self { codec: Codec::of(dtype).expect("a half-precision format has a codec"), scale }
    }

    /// Returns the bytes of this many gradients.
    pub fn size_bytes(count: usize) -> usize {
        count * BYTES
    }

    /// Rounds gradients to as many numbers.
    pub fn encode(&self, gradients: &[f32], encoded: &mut [u8]) {
        let mut scaled = [0.0; BLOCK];
        for (values, encoded) in gradients.chunks(BLOCK).zip(encoded.chunks_mut(BLOCK * BYTES)) {
            let scaled = &mut scaled[..values.len()];
            scaled.iter_mut().zip(values).for_each(|(scaled, value)| *scaled = value * self.scale);
            (self.codec.encode)(encoded, cast_slice(scaled));
        }
    }

    /// Converts them back.
    pub fn decode(&self, encoded: &[u8], gradients: &mut [f32]) {
        for (values, encoded) in gradients.chunks_mut(BLOCK).zip(encoded.chunks(BLOCK * BYTES)) {
            (self.codec.decode)(cast_slice_mut(values), encoded);
            values.iter_mut().for_each(|value| *value /= self.scale);
        }
    }
}
