//! Gradients in a narrower wire format.

use std::fmt;
use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::{bf16, f16};

use super::half_bytes::HalfBytes;
use super::parcel::{CommBuffer, Flight};
use super::{Bucket, CollectiveSpec};
use unisono::{Communicator, DType, Element, Error};
use unisono_compress::Wire;

/// A bucket's gradients in half the bytes.
pub(super) trait HalfBuffer: fmt::Debug + Send + Sync {
    /// Returns its element type.
    fn dtype(&self) -> DType;

    /// Rounds the gradients and sends them.
    fn launch(
        &mut self,
        comm: &mut Communicator,
        way: CollectiveSpec,
        gradients: &[f32],
    ) -> Result<(), Error>;

    /// Waits for the sums and converts them back: all, or only this part.
    fn complete(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error>;
}

impl Bucket {
    /// Returns the element type of its gradients on their way.
    pub(super) fn dtype(&self) -> DType {
        self.narrow.as_ref().map_or(DType::F32, |narrow| narrow.dtype())
    }
}

/// Returns the memory for this many gradients in this wire format, if it is not that of the gradients
/// themselves.
pub(super) fn narrow(
    comm: &Communicator,
    (wire, f16_scale): (Wire, f32),
    bucket: usize,
    count: usize,
) -> Result<Option<Box<dyn HalfBuffer>>, Error> {
    Ok(match wire {
        Wire::F32 | Wire::Compressed(_) => None,
        Wire::Bf16 => Some(Box::new(Encoded::<bf16>::new(comm, bucket, count, 1.0)?)),
        Wire::F16 => Some(Box::new(Encoded::<f16>::new(comm, bucket, count, f16_scale)?)),
    })
}

/// Scaled gradients in a half-precision format.
#[derive(Debug)]
struct Encoded<T: Element> {
    parcel: CommBuffer<T>,
    half: HalfBytes,
}

impl<T: Element> Encoded<T> {
    fn new(comm: &Communicator, bucket: usize, count: usize, scale: f32) -> Result<Self, Error> {
        Ok(Self {
            parcel: CommBuffer::new(comm, Some(bucket), count)?,
            half: HalfBytes::new(T::DTYPE, scale),
        })
    }
}

impl<T: Element> HalfBuffer for Encoded<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn launch(
        &mut self,
        comm: &mut Communicator,
        way: CollectiveSpec,
        gradients: &[f32],
    ) -> Result<(), Error> {
        self.half.encode(gradients, cast_slice_mut(self.parcel.values_mut()));
        self.parcel.launch(comm, way)
    }

    fn complete(
        &mut self,
        gradients: &mut [f32],
        part: Option<Range<usize>>,
    ) -> Result<Option<Flight>, Error> {
        let flight = self.parcel.complete()?;
        if flight.is_some() {
            let part = part.unwrap_or(0..gradients.len());
            self.half.decode(cast_slice(&self.parcel.values()[part.clone()]), &mut gradients[part]);
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
                let mut narrow =
                    narrow(&comm, (wire, 1.0 / 4096.0), 0, COUNT).unwrap().expect("it is narrow");
                narrow.launch(&mut comm, CollectiveSpec::all_reduce(false), &gradients).unwrap();
                let mut landed = vec![0.0; COUNT];
                assert!(narrow.complete(&mut landed, None).unwrap().is_some());
                assert!(landed.into_iter().eq(gradients.iter().copied().map(rounded)), "{wire}");
            }
        });
    }
}
