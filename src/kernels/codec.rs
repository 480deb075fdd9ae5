//! Conversion of `f32` elements to half precision and back.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::Kernel;
use super::fused::{Fused, Reading};
use super::halves::Half;
use super::lanes::Convert;
use super::level::Level;
use crate::dtype::DType;

/// Encodes `f32` elements in a half-precision format, and decodes them.
#[derive(Debug, Clone, Copy)]
pub struct Codec {
    /// Rounds `f32` elements to half precision.
    pub encode: Kernel,
    /// Stores half-precision elements as `f32`.
    pub decode: Kernel,
}

impl Codec {
    /// Returns the codec of a half-precision type; `None` for other types.
    pub fn of(dtype: DType) -> Option<Self> {
        Self::at_level(Level::best(), dtype)
    }

    pub(super) fn at_level(level: Level, dtype: DType) -> Option<Self> {
        match dtype {
            DType::F16 => Some(Self::of_half::<f16>(level)),
            DType::BF16 => Some(Self::of_half::<bf16>(level)),
            _ => None,
        }
    }

    pub(super) fn of_half<H: Half>(level: Level) -> Self {
        let encode = level.compiled::<Reading<Encode<H>>>();
        let decode = level.compiled::<Reading<Decode<H>>>();
        Self { encode, decode }
    }
}

#[derive(Debug)]
struct Encode<H>(PhantomData<H>);

impl<H: Half> Fused for Encode<H> {
    type Half = H;
    type Element = H;
    type Beside = f32;

    #[inline(always)]
    fn block<C: Convert<H, N>, const N: usize>(converter: C, encoded: &mut [H; N], wide: &mut [f32; N]) {
        *encoded = converter.round(*wide);
    }
}

#[derive(Debug)]
struct Decode<H>(PhantomData<H>);

impl<H: Half> Fused for Decode<H> {
    type Half = H;
    type Element = f32;
    type Beside = H;

    #[inline(always)]
    fn block<C: Convert<H, N>, const N: usize>(converter: C, wide: &mut [f32; N], encoded: &mut [H; N]) {
        *wide = converter.widen(*encoded);
    }
}
