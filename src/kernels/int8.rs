//! `f32` elements in eight bits each, with a scale for every block of them.
//!
//! A block is its scale, an `f32` in little-endian bytes, and an `i8` per element: the multiple of the scale nearest to the
//! element. The scale is the block's largest magnitude / 127. What rounding loses is left to the caller, who adds it to the
//! next gradient: error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019).

use bytemuck::{cast_slice, cast_slice_mut};

use super::lanes::Lanes;
use super::level::{Level, Pass};

/// So many elements have one scale.
const BLOCK: usize = 256;

const SCALE_BYTES: usize = size_of::<f32>();

const BLOCK_BYTES: usize = SCALE_BYTES + BLOCK;

/// The largest multiple of a scale.
const MOST: f32 = 127.0;

/// 127 times this is finite. `f32::MAX / 127` is rounded up: 127 times that is not.
const LARGEST_SCALE: f32 = (f32::MAX / MOST).next_down();

/// The bits of a magnitude. As integers they are ordered as the magnitudes are, and those of infinity and NaN are larger.
const MAGNITUDE: u32 = u32::MAX >> 1;

/// Added to a small number, it leaves no bits for a fraction: the sum is rounded to the nearest integer, ties to even, which
/// is then in its lowest bits. All instruction sets have this; not all have an instruction that rounds.
const ROUND: f32 = 1.5 * (1 << 23) as f32;

/// The bytes of so many elements, encoded.
pub fn encoded_bytes(count: usize) -> usize {
    count + SCALE_BYTES * count.div_ceil(BLOCK)
}

/// Encodes the values, and leaves in `values` what the encoding does not carry: each value − its decoded value.
///
/// A block whose scale would be subnormal has the scale 0: it decodes to zeros, and all of it stays in `values`.
///
/// # Errors
/// The index of the first value that is NaN or infinite. The blocks before it have been encoded; its own block and those after
/// it are unchanged.
///
/// # Panics
/// If `encoded` is not as long as [`encoded_bytes`] says.
pub fn encode(values: &mut [f32], encoded: &mut [u8]) -> Result<(), usize> {
    encode_at(Level::best(), values, encoded)
}

fn encode_at(level: Level, values: &mut [f32], encoded: &mut [u8]) -> Result<(), usize> {
    let mut result = Ok(());
    level.compiled::<Encode>()(cast_slice_mut(values), (encoded, &mut result));
    result
}

/// Stores the decoded values.
///
/// # Panics
/// If `encoded` is not as long as [`encoded_bytes`] says.
pub fn decode(values: &mut [f32], encoded: &[u8]) {
    decode_at(Level::best(), values, encoded);
}

fn decode_at(level: Level, values: &mut [f32], encoded: &[u8]) {
    level.compiled::<Decode<false>>()(cast_slice_mut(values), encoded);
}

/// Adds the decoded values to `values`.
///
/// # Panics
/// If `encoded` is not as long as [`encoded_bytes`] says.
pub fn decode_add(values: &mut [f32], encoded: &[u8]) {
    decode_add_at(Level::best(), values, encoded);
}

/// Whether all decoded values are finite: those of an encoding that failed are not.
///
/// # Panics
/// If `encoded` ends within a scale.
pub fn is_finite(encoded: &[u8]) -> bool {
    let mut scales =
        encoded.chunks(BLOCK_BYTES).map(|block| *block.first_chunk().expect("a block has a scale"));
    scales.all(|scale| f32::from_le_bytes(scale).is_finite())
}

fn decode_add_at(level: Level, values: &mut [f32], encoded: &[u8]) {
    level.compiled::<Decode<true>>()(cast_slice_mut(values), encoded);
}

fn assert_length(values: &[f32], encoded: &[u8]) {
    assert_eq!(encoded.len(), encoded_bytes(values.len()), "the bytes of {} values, encoded", values.len());
}

struct Encode;

impl Pass for Encode {
    type Beside<'a> = (&'a mut [u8], &'a mut Result<(), usize>);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (encoded, result): (&mut [u8], &mut Result<(), usize>)) {
        let values: &mut [f32] = cast_slice_mut(values);
        assert_length(values, encoded);
        let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
        let (encoded_blocks, encoded_rest) = encoded.as_chunks_mut::<BLOCK_BYTES>();
        let full = blocks.len() * BLOCK;
        for (index, (block, encoded)) in blocks.iter_mut().zip(encoded_blocks).enumerate() {
            if !encode_block(block, encoded) {
                *result = Err(index * BLOCK + first_not_finite(block));
                return;
            }
        }
        if !rest.is_empty() && !encode_block(rest, encoded_rest) {
            *result = Err(full + first_not_finite(rest));
        }
    }
}

/// Whether all values are finite; otherwise nothing is changed.
#[inline(always)]
fn encode_block(values: &mut [f32], encoded: &mut [u8]) -> bool {
    let mut largest = 0;
    for value in &*values {
        largest = largest.max(value.to_bits() & MAGNITUDE);
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return false;
    }
    let scale = scale(largest);
    // The product is at most a few roundings above 127, which round to 127.
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let (scale_bytes, elements) = parts_mut(encoded);
    *scale_bytes = scale.to_le_bytes();
    for (value, element) in values.iter_mut().zip(elements) {
        let rounded = *value * inverse + ROUND;
        *element = rounded.to_bits() as u8;
        *value -= (rounded - ROUND) * scale;
    }
    true
}

/// Neither the scale nor its inverse is subnormal, nor 127 times the scale infinite.
#[inline(always)]
fn scale(largest: f32) -> f32 {
    let scale = (largest / MOST).min(LARGEST_SCALE);
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}

#[inline(always)]
fn parts_mut(encoded: &mut [u8]) -> (&mut [u8; SCALE_BYTES], &mut [u8]) {
    encoded.split_first_chunk_mut().expect("a block has a scale")
}

#[cold]
fn first_not_finite(values: &[f32]) -> usize {
    values.iter().position(|value| !value.is_finite()).expect("one of them was not")
}

struct Decode<const ADD: bool>;

impl<const ADD: bool> Pass for Decode<ADD> {
    type Beside<'a> = &'a [u8];

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], encoded: &[u8]) {
        let values: &mut [f32] = cast_slice_mut(values);
        assert_length(values, encoded);
        let (blocks, rest) = values.as_chunks_mut::<BLOCK>();
        let (encoded_blocks, encoded_rest) = encoded.as_chunks::<BLOCK_BYTES>();
        for (block, encoded) in blocks.iter_mut().zip(encoded_blocks) {
            decode_block::<ADD>(block, encoded);
        }
        if !rest.is_empty() {
            decode_block::<ADD>(rest, encoded_rest);
        }
    }
}

#[inline(always)]
fn decode_block<const ADD: bool>(values: &mut [f32], encoded: &[u8]) {
    let (scale, elements) = encoded.split_first_chunk().expect("a block has a scale");
    let scale = f32::from_le_bytes(*scale);
    let elements: &[i8] = cast_slice(elements);
    for (value, &element) in values.iter_mut().zip(elements) {
        let decoded = f32::from(element) * scale;
        *value = if ADD { *value + decoded } else { decoded };
    }
}

#[cfg(test)]
mod tests;
