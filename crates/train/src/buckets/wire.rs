//! Gradients in half precision.

use std::fmt::Debug;
use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::parcel::{CommBuffer, Flight};
use super::{BucketSettings, Way};
use unisono::internals::Codec;
use unisono::{Communicator, DType, Element, Error};
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

/// The gradients of a bucket in half precision, which are sent instead of its `f32` values.
pub(super) trait Narrow: Debug + Send + Sync {
    /// Rounds the gradients, and starts the collective.
    fn launch(&mut self, comm: &mut Communicator, way: Way, gradients: &[f32]) -> Result<(), Error>;

    /// Waits for the sums, and converts back all of them or only this part.
    fn complete(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error>;
}

/// Allocates a bucket with this number of gradients, if the wire format rounds them.
pub(super) fn narrow(
    comm: &Communicator,
    settings: &BucketSettings,
    (bucket, count): (usize, usize),
    is_beside: bool,
) -> Result<Option<Box<dyn Narrow>>, Error> {
    let Some(half) = HalfBytes::of(settings) else { return Ok(None) };
    Ok(Some(match settings.wire {
        Wire::F16 => {
            Box::new(Rounded::<f16> { half, sent: CommBuffer::new(comm, Some(bucket), count, is_beside)? })
        }
        _ => Box::new(Rounded::<bf16> { half, sent: CommBuffer::new(comm, Some(bucket), count, is_beside)? }),
    }))
}

#[derive(Debug)]
struct Rounded<T: Element> {
    half: HalfBytes,
    sent: CommBuffer<T>,
}

impl<T: Element> Narrow for Rounded<T> {
    fn launch(&mut self, comm: &mut Communicator, way: Way, gradients: &[f32]) -> Result<(), Error> {
        self.half.encode(gradients, cast_slice_mut(self.sent.values_mut()));
        self.sent.launch(comm, way)
    }

    fn complete(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error> {
        let flight = self.sent.complete()?;
        if flight.is_some() {
            let part = part.unwrap_or(0..gradients.len());
            self.half.decode(cast_slice(&self.sent.values()[part.clone()]), &mut gradients[part]);
        }
        Ok(flight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unisono::Operation;

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
                let mut narrow = narrow(&comm, &settings, (0, COUNT), false).unwrap().expect("it is narrow");
                narrow.launch(&mut comm, (Operation::AllReduce, None), &gradients).unwrap();
                let mut landed = vec![0.0; COUNT];
                assert!(narrow.complete(&mut landed, None).unwrap().is_some());
                assert!(landed.into_iter().eq(gradients.iter().copied().map(rounded)), "{wire}");
            }
        });
    }
}
