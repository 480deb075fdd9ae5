//! The wire format of gradients.

use half::{bf16, f16};

use super::Way;
use super::parcel::{Flight, Parcel};
use unisono::{Communicator, DType, Element, Error};

/// The wire format of gradients. Sums are computed in `f32` and rounded for sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Unchanged.
    F32,
    /// Half the bytes, the range of `f32`, 8 bits of precision.
    Bf16,
    /// Half the bytes, 11 bits of precision, and a narrow range.
    F16,
}

unisono_collectives::named!(Wire, "wire format");

impl Wire {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

/// A bucket's gradients in half the bytes.
#[derive(Debug)]
pub(super) enum Narrow {
    /// The gradients are sent unchanged.
    No,
    Bf16(Parcel<bf16>),
    F16(Parcel<f16>),
}

impl Narrow {
    pub(super) fn new(comm: &Communicator, wire: Wire, bucket: usize, count: usize) -> Result<Self, Error> {
        Ok(match wire {
            Wire::F32 => Self::No,
            Wire::Bf16 => Self::Bf16(Parcel::new(comm, Some(bucket), count)?),
            Wire::F16 => Self::F16(Parcel::new(comm, Some(bucket), count)?),
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
        f16_scale: f32,
    ) -> Result<(), Error> {
        match self {
            Self::No => Ok(()),
            Self::Bf16(parcel) => {
                convert(gradients, parcel.values_mut(), |&value| bf16::from_f32(value));
                parcel.launch(comm, way)
            }
            Self::F16(parcel) => {
                convert(gradients, parcel.values_mut(), |&value| f16::from_f32(value * f16_scale));
                parcel.launch(comm, way)
            }
        }
    }

    /// Waits for the sums and converts them back.
    pub(super) fn land(&mut self, gradients: &mut [f32], f16_scale: f32) -> Result<Option<Flight>, Error> {
        match self {
            Self::No => Ok(None),
            Self::Bf16(parcel) => land(parcel, gradients, |value| value.to_f32()),
            Self::F16(parcel) => land(parcel, gradients, |value| value.to_f32() / f16_scale),
        }
    }
}

fn land<T: Element>(
    parcel: &mut Parcel<T>,
    gradients: &mut [f32],
    widen: impl Fn(&T) -> f32,
) -> Result<Option<Flight>, Error> {
    let flight = parcel.land()?;
    if flight.is_some() {
        convert(parcel.values(), gradients, widen);
    }
    Ok(flight)
}

fn convert<A, B>(from: &[A], to: &mut [B], convert: impl Fn(&A) -> B) {
    from.iter().zip(to).for_each(|(from, to)| *to = convert(from));
}
