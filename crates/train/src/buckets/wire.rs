//! Gradients in half precision.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::parcel::{CommBuffer, Flight};
use super::{BucketSettings, CollectiveSpec};
use unisono::internals::Codec;
use unisono::{Communicator, DType, Error};
use unisono_compress::Wire;

/// The number of gradients in a block, small enough to stay in the core's cache from its scaling to its conversion.
const BLOCK: usize = 1024;
const BYTES: usize = 2;

/// Scales gradients, and rounds them to a half-precision format.
#[derive(Debug)]
pub struct HalfBytes {
    codec: Codec,
    /// The scale, a power of two.
    scale: f32,
}

impl HalfBytes {
    /// Returns the format to which gradients are rounded, if the wire format of these settings rounds.
    pub fn of(settings: &BucketSettings) -> Option<Self> {
        let scale = match settings.wire {
            Wire::F32 | Wire::Compressed(_) => return None,
            Wire::Bf16 => 1.0,
            Wire::F16 => settings.f16_scale,
        };
        let codec = Codec::of(dtype(settings.wire)).expect("a half-precision format has a codec");
        Some(Self { codec, scale })
    }

    /// Returns the bytes of this many gradients.
    pub fn size_bytes(count: usize) -> usize {
        count * BYTES
    }

    /// Rounds gradients to the half-precision format.
    pub fn encode(&self, gradients: &[f32], encoded: &mut [u8]) {
        let mut scaled = [0.0; BLOCK];
        for (values, encoded) in gradients.chunks(BLOCK).zip(encoded.chunks_mut(BLOCK * BYTES)) {
            let scaled = &mut scaled[..values.len()];
            scaled.iter_mut().zip(values).for_each(|(scaled, value)| *scaled = value * self.scale);
            (self.codec.encode)(encoded, cast_slice(scaled));
        }
    }

    /// Converts gradients back to `f32`.
    pub fn decode(&self, encoded: &[u8], gradients: &mut [f32]) {
        for (values, encoded) in gradients.chunks_mut(BLOCK).zip(encoded.chunks(BLOCK * BYTES)) {
            (self.codec.decode)(cast_slice_mut(values), encoded);
            values.iter_mut().for_each(|value| *value /= self.scale);
        }
    }
}

pub(super) fn dtype(wire: Wire) -> DType {
    match wire {
        Wire::F32 | Wire::Compressed(_) => DType::F32,
        Wire::Bf16 => DType::BF16,
        Wire::F16 => DType::F16,
    }
}

#[derive(Debug)]
pub(super) struct Narrow {
    half: HalfBytes,
    buffer: HalfBuffer,
}

#[derive(Debug)]
enum HalfBuffer {
    Bf16(CommBuffer<bf16>),
    F16(CommBuffer<f16>),
}

impl HalfBuffer {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Bf16(buffer) => cast_slice_mut(buffer.values_mut()),
            Self::F16(buffer) => cast_slice_mut(buffer.values_mut()),
        }
    }
}

impl Narrow {
    /// Returns the memory for this many gradients, if the wire format rounds them.
    pub(super) fn new(
        comm: &Communicator,
        settings: &BucketSettings,
        bucket: usize,
        count: usize,
    ) -> Result<Option<Self>, Error> {
        let Some(half) = HalfBytes::of(settings) else { return Ok(None) };
        let buffer = match settings.wire {
            Wire::F16 => HalfBuffer::F16(CommBuffer::new(comm, Some(bucket), count)?),
            _ => HalfBuffer::Bf16(CommBuffer::new(comm, Some(bucket), count)?),
        };
        Ok(Some(Self { half, buffer }))
    }

    pub(super) fn launch(
        &mut self,
        comm: &mut Communicator,
        way: CollectiveSpec,
        gradients: &[f32],
    ) -> Result<(), Error> {
        self.half.encode(gradients, self.buffer.bytes());
        match &mut self.buffer {
            HalfBuffer::Bf16(buffer) => buffer.launch(comm, way),
            HalfBuffer::F16(buffer) => buffer.launch(comm, way),
        }
    }

    /// Waits for the sums, and converts back all of them or only this part.
    pub(super) fn complete(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error> {
        let flight = match &mut self.buffer {
            HalfBuffer::Bf16(buffer) => buffer.complete()?,
            HalfBuffer::F16(buffer) => buffer.complete()?,
        };
        if flight.is_some() {
            let Range { start, end } = part.unwrap_or(0..gradients.len());
            let bytes = &self.buffer.bytes()[BYTES * start..BYTES * end];
            self.half.decode(bytes, &mut gradients[start..end]);
        }
        Ok(flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than two blocks.
    const COUNT: usize = 2 * BLOCK + 7;

    #[test]
    fn gradients_are_scaled_and_rounded() {
        unisono::threads(1, |mut comm| {
            let gradients: Vec<_> = (0..COUNT).map(|index| (index as f32 - 1000.0) * 0.1).collect();
            for (wire, rounded) in [
                (Wire::Bf16, &(|value| bf16::from_f32(value).to_f32()) as &dyn Fn(f32) -> f32),
                (Wire::F16, &|value| f16::from_f32(value / 4096.0).to_f32() * 4096.0),
            ] {
                let settings = BucketSettings { wire, f16_scale: 1.0 / 4096.0, ..BucketSettings::default() };
                let mut narrow = Narrow::new(&comm, &settings, 0, COUNT).unwrap().expect("it is narrow");
                narrow.launch(&mut comm, CollectiveSpec::all_reduce(false), &gradients).unwrap();
                let mut landed = vec![0.0; COUNT];
                assert!(narrow.complete(&mut landed, None).unwrap().is_some());
                assert!(landed.into_iter().eq(gradients.iter().copied().map(rounded)), "{wire}");
            }
        });
    }
}
