//! `f32` elements encoded in a few bits each, with scales for every block.
//!
//! A block consists of its scales, `f32` in little-endian bytes, and the codes of its elements, which a [`Code`] defines. The
//! rounding errors are returned to the caller, which adds them to the next gradient: error feedback (Seide et al. 2014; Karimireddy
//! et al., ICML 2019).
//!
//! If a byte holds n codes, the elements of a block form n runs, and a byte has one code of each run, that of the first run in its
//! lowest bits. So one instruction encodes or decodes neighbours.

use std::marker::PhantomData;

use unisono::internals::{Level, Loop};

mod codes;
mod draws;

pub use codes::{Int4, Int4Stochastic, Int8, Int8Stochastic, OneBit};
pub use draws::Draws;

/// The number of elements that share their scales.
const BLOCK: usize = 256;

/// A code of elements, with the scales of a block.
pub trait Code: Copy + 'static {
    /// The bits per element, which divide 8.
    const BITS: usize;

    /// The number of scales of a block, 1 or 2.
    const SCALES: usize;

    /// Whether values are rounded at random to one of the two nearest values: the nearer one has the higher probability, so that the mean of
    /// decoded values is the value (to 2⁻¹⁷ of a step).
    ///
    /// Source: Gupta, Agrawal, Gopalakrishnan and Narayanan, "Deep learning with limited numerical precision", ICML 2015; for gradients
    /// Alistarh et al., "QSGD", NeurIPS 2017.
    const IS_STOCHASTIC: bool;

    /// Returns the code that fits a block with this largest magnitude. All scales are finite, and none is
    /// subnormal.
    fn fitting(values: &[f32], largest: f32) -> Self;

    /// Returns the scales; only the first [`SCALES`](Self::SCALES) count.
    fn scales(self) -> [f32; 2];

    /// Returns the code with these scales.
    fn of_scales(scales: [f32; 2]) -> Self;

    /// Returns the code of a value, in the lowest bits with all others 0, and the decoded value. Stochastic rounding adds `off`, a fraction of
    /// the step between two values, which is uniform between −½ and ½.
    fn encode(self, value: f32, off: f32) -> (u8, f32);

    /// Returns the value of the code in the lowest bits.
    fn decode(self, code: u8) -> f32;
}

const fn scale_bytes<C: Code>() -> usize {
    C::SCALES * size_of::<f32>()
}

const fn block_bytes<C: Code>(count: usize) -> usize {
    scale_bytes::<C>() + (count * C::BITS).div_ceil(8)
}

/// Returns the size of this many elements, encoded.
pub fn encoded_bytes<C: Code>(count: usize) -> usize {
    let rest = count % BLOCK;
    count / BLOCK * block_bytes::<C>(BLOCK) + if rest == 0 { 0 } else { block_bytes::<C>(rest) }
}

/// Encodes the values, and leaves in `values` the residual: each value − its decoded value. `draws` are for stochastic rounding.
///
/// A scale that would be subnormal is 0. Its elements decode to zeros, and stay in `values`.
///
/// # Errors
/// The index of the first value that is NaN or infinite. The blocks before it have been encoded. Its own block and those after it
/// are unchanged.
///
/// # Panics
/// If the length of `encoded` is not [`encoded_bytes`].
pub fn encode<C: Code>(values: &mut [f32], encoded: &mut [u8], draws: Draws) -> Result<(), usize> {
    Level::best().run(Encode::<C>(values, encoded, draws, PhantomData))
}

/// Stores the decoded values.
///
/// # Panics
/// If the length of `encoded` is not [`encoded_bytes`].
pub fn decode<C: Code>(values: &mut [f32], encoded: &[u8]) {
    Level::best().run(Decode::<C, false>(values, encoded, PhantomData));
}

/// Adds the decoded values to `values`.
///
/// # Panics
/// If the length of `encoded` is not [`encoded_bytes`].
pub fn decode_add<C: Code>(values: &mut [f32], encoded: &[u8]) {
    Level::best().run(Decode::<C, true>(values, encoded, PhantomData));
}

/// Returns whether all decoded values are finite. The values of a failed encoding are not.
///
/// # Panics
/// If `encoded` ends within a scale.
pub fn is_finite<C: Code>(encoded: &[u8]) -> bool {
    encoded.chunks(block_bytes::<C>(BLOCK)).all(|block| {
        let (scales, _) = block[..scale_bytes::<C>()].as_chunks();
        scales.iter().all(|&scale| f32::from_le_bytes(scale).is_finite())
    })
}

fn assert_length<C: Code>(values: &[f32], encoded: &[u8]) {
    assert_eq!(
        encoded.len(),
        encoded_bytes::<C>(values.len()),
        "the encoded bytes of {} values",
        values.len()
    );
}

struct Encode<'a, C>(&'a mut [f32], &'a mut [u8], Draws, PhantomData<C>);

impl<C: Code> Loop<Result<(), usize>> for Encode<'_, C> {
    #[inline(always)]
    fn run(self) -> Result<(), usize> {
        let Self(values, encoded, draws, _) = self;
        assert_length::<C>(values, encoded);
        let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
        let full = blocks.len() * BLOCK;
        let (full_encoded, rest_encoded) = encoded.split_at_mut(encoded_bytes::<C>(full));
        let encoded_blocks = full_encoded.chunks_exact_mut(block_bytes::<C>(BLOCK));
        for (number, (block, encoded)) in blocks.iter_mut().zip(encoded_blocks).enumerate() {
            let start = number * BLOCK;
            if !encode_block::<C>(block, encoded, draws, start) {
                return Err(start + first_not_finite(block));
            }
        }
        if !rest.is_empty() && !encode_block::<C>(rest, rest_encoded, draws, full) {
            return Err(full + first_not_finite(rest));
        }
        Ok(())
    }
}

/// Encodes the values from index `start`. Returns whether all are finite; otherwise nothing is changed.
#[inline(always)]
fn encode_block<C: Code>(values: &mut [f32], encoded: &mut [u8], draws: Draws, start: usize) -> bool {
    // As integers, the bits of magnitudes are ordered like these, with infinity and NaN above.
    let mut largest = 0;
    for value in &*values {
        largest = largest.max(value.abs().to_bits());
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return false;
    }
    let code = C::fitting(values, largest);
    let (scales, codes) = encoded.split_at_mut(scale_bytes::<C>());
    for (place, scale) in scales.as_chunks_mut().0.iter_mut().zip(code.scales()) {
        *place = scale.to_le_bytes();
    }
    let run_length = codes.len();
    for (run, values) in values.chunks_mut(run_length).enumerate() {
        for (index, (value, byte)) in values.iter_mut().zip(&mut *codes).enumerate() {
            let off = if C::IS_STOCHASTIC { draws.at(start + run * run_length + index) } else { 0.0 };
            let (bits, decoded) = code.encode(*value, off);
            // The first run has a code for every byte.
            *byte = if run == 0 { bits } else { *byte | bits << (run * C::BITS) };
            *value -= decoded;
        }
    }
    true
}

#[cold]
fn first_not_finite(values: &[f32]) -> usize {
    values.iter().position(|value| !value.is_finite()).expect("one of them was not")
}

struct Decode<'a, C, const ADD: bool>(&'a mut [f32], &'a [u8], PhantomData<C>);

impl<C: Code, const ADD: bool> Loop for Decode<'_, C, ADD> {
    #[inline(always)]
    fn run(self) {
        let Self(values, encoded, _) = self;
        assert_length::<C>(values, encoded);
        let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
        let (full_encoded, rest_encoded) = encoded.split_at(encoded_bytes::<C>(blocks.len() * BLOCK));
        let encoded_blocks = full_encoded.chunks_exact(block_bytes::<C>(BLOCK));
        for (block, encoded) in blocks.iter_mut().zip(encoded_blocks) {
            decode_block::<C, ADD>(block, encoded);
        }
        if !rest.is_empty() {
            decode_block::<C, ADD>(rest, rest_encoded);
        }
    }
}

#[inline(always)]
fn decode_block<C: Code, const ADD: bool>(values: &mut [f32], encoded: &[u8]) {
    let (scale_bytes, codes) = encoded.split_at(scale_bytes::<C>());
    let mut scales = [0.0; 2];
    for (scale, &bytes) in scales.iter_mut().zip(scale_bytes.as_chunks().0) {
        *scale = f32::from_le_bytes(bytes);
    }
    let code = C::of_scales(scales);
    for (run, values) in values.chunks_mut(codes.len()).enumerate() {
        for (value, &byte) in values.iter_mut().zip(codes) {
            let decoded = code.decode(byte >> (run * C::BITS));
            *value = if ADD { *value + decoded } else { decoded };
        }
    }
}

#[cfg(test)]
mod tests;
