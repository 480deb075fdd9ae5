//! The wire format of gradients.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::Way;
use super::half_bytes::HalfBytes;
use super::parcel::{Flight, Parcel};
use unisono::{Communicator, DType, Element, Error};
use unisono_compress::Compression;

/// The wire format of gradients. Sums are computed in `f32` and rounded for sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wire {
    /// Unchanged.
    F32,
    /// Half the bytes, the range of `f32`, 8 bits of precision.
    Bf16,
    /// Half the bytes, 11 bits of precision, and a narrow range.
    F16,
    /// Fewer bytes between nodes, with error feedback; unchanged within a node.
    Compressed(Compression),
}

/// The text names no wire format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no wire format is called {0:?}; there are f32, bf16 and f16, and between nodes {names}", names = Compression::NAMES)]
pub struct UnknownWire(String);

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.pad("f32"),
            Self::Bf16 => f.pad("bf16"),
            Self::F16 => f.pad("f16"),
            Self::Compressed(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for Wire {
    type Err = UnknownWire;

    fn from_str(text: &str) -> Result<Self, UnknownWire> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => text.parse().map(Self::Compressed).map_err(|_| UnknownWire(text.to_owned())),
        }
    }
}

/// A bucket's gradients in half the bytes.
#[derive(Debug)]
pub(super) enum Narrow {
    /// Whatever sends the gradients takes them as they are.
    No,
    Bf16(Encoded<bf16>),
    F16(Encoded<f16>),
}

impl Narrow {
    pub(super) fn new(
        comm: &Communicator,
        (wire, f16_scale): (Wire, f32),
        bucket: usize,
        count: usize,
    ) -> Result<Self, Error> {
        Ok(match wire {
            Wire::F32 | Wire::Compressed(_) => Self::No,
            Wire::Bf16 => Self::Bf16(Encoded::new(comm, bucket, count, 1.0)?),
            Wire::F16 => Self::F16(Encoded::new(comm, bucket, count, f16_scale)?),
        })
    }

    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::No => DType::F32,
            Self::Bf16(_) => DType::BF16,
            Self::F16(_) => DType::F16,
        }
    }

    /// Rounds the gradients and sends them.
    pub(super) fn launch(
        &mut self,
        comm: &mut Communicator,
        way: Way,
        gradients: &[f32],
    ) -> Result<(), Error> {
        match self {
            Self::No => Ok(()),
            Self::Bf16(encoded) => encoded.launch(comm, way, gradients),
            Self::F16(encoded) => encoded.launch(comm, way, gradients),
        }
    }

    /// Waits for the sums and converts them back: all, or only this part.
    pub(super) fn land(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error> {
        let part = part.unwrap_or(0..gradients.len());
        match self {
            Self::No => Ok(None),
            Self::Bf16(encoded) => encoded.land(&mut gradients[part.clone()], part),
            Self::F16(encoded) => encoded.land(&mut gradients[part.clone()], part),
        }
    }
}

/// Scaled gradients in a half-precision format.
#[derive(Debug)]
pub(super) struct Encoded<T: Element> {
    parcel: Parcel<T>,
    half: HalfBytes,
}

impl<T: Element> Encoded<T> {
    fn new(comm: &Communicator, bucket: usize, count: usize, scale: f32) -> Result<Self, Error> {
        Ok(Self { parcel: Parcel::new(comm, Some(bucket), count)?, half: HalfBytes::new(T::DTYPE, scale) })
    }

    fn launch(&mut self, comm: &mut Communicator, way: Way, gradients: &[f32]) -> Result<(), Error> {
        self.half.encode(gradients, cast_slice_mut(self.parcel.values_mut()));
        self.parcel.launch(comm, way)
    }

    fn land(&mut self, gradients: &mut [f32], part: Range<usize>) -> Result<Option<Flight>, Error> {
        let flight = self.parcel.land()?;
        if flight.is_some() {
            self.half.decode(cast_slice(&self.parcel.values()[part]), gradients);
        }
        Ok(flight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::half_bytes::BLOCK;
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
                let mut narrow = Narrow::new(&comm, (wire, 1.0 / 4096.0), 0, COUNT).unwrap();
                narrow.launch(&mut comm, Way::all_reduce(false), &gradients).unwrap();
                let mut landed = vec![0.0; COUNT];
                assert!(narrow.land(&mut landed, None).unwrap().is_some());
                assert!(landed.into_iter().eq(gradients.iter().copied().map(rounded)), "{wire}");
            }
        });
    }
}
