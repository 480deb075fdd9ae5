//! Half-precision elements: conversion from and to `f32`, and accumulation in `f32`.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::fused::{Fused, Reading, Writing};
use super::halves::Half;
use super::lanes::Convert;
use super::level::Level;
use super::number::{Operator, Product, Sum};
use super::{Kernel, ReduceOp};
use crate::dtype::DType;

/// Accumulates half precision in `f32`: values are rounded when they are sent, not at every addition.
#[derive(Debug, Clone, Copy)]
pub struct Accumulator {
    /// The half-precision format.
    pub codec: Codec,
    /// Reduces half-precision elements into `f32`.
    pub reduce: Kernel,
    /// Rounds `f32` elements to half precision, and stores the rounded values in `held` too, so that a rank holds the values that it sends.
    pub round: fn(held: &mut [u8], rounded: &mut [u8]),
}

impl Accumulator {
    /// Returns the accumulator of a half-precision type; `None` for other types, and for operations that
    /// never round.
    pub fn of(dtype: DType, op: ReduceOp) -> Option<Self> {
        Self::at_level(Level::best(), dtype, op)
    }

    pub(super) fn at_level(level: Level, dtype: DType, op: ReduceOp) -> Option<Self> {
        match dtype {
            DType::F16 => Self::of_half::<f16>(level, op),
            DType::BF16 => Self::of_half::<bf16>(level, op),
            _ => None,
        }
    }

    fn of_half<H: Half>(level: Level, op: ReduceOp) -> Option<Self> {
        let reduce = match op {
            ReduceOp::Sum | ReduceOp::Mean => level.compiled::<Reading<ReduceWidened<H, Sum>>>(),
            ReduceOp::Product => level.compiled::<Reading<ReduceWidened<H, Product>>>(),
            _ => return None,
        };
        let encode = level.compiled::<Reading<Encode<H>>>();
        let decode = level.compiled::<Reading<Decode<H>>>();
        let round = level.compiled::<Writing<Round<H>>>();
        Some(Self { codec: Codec { encode, decode }, reduce, round })
    }
}

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
        Accumulator::of(dtype, ReduceOp::Sum).map(|accumulator| accumulator.codec)
    }
}

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

/// Reduces half-precision elements into `f32`.
struct ReduceWidened<H, O>(PhantomData<(H, O)>);

impl<H: Half, O: Operator<f32>> Fused for ReduceWidened<H, O> {
    type Half = H;
    type Element = f32;
    type Beside = H;

    #[inline(always)]
    fn block<C: Convert<H, N>, const N: usize>(converter: C, held: &mut [f32; N], arrived: &mut [H; N]) {
        *held = apply_all::<O, N>(*held, converter.widen(*arrived));
    }
}

/// Rounds `f32` to half precision, in both arrays.
struct Round<H>(PhantomData<H>);

impl<H: Half> Fused for Round<H> {
    type Half = H;
    type Element = f32;
    type Beside = H;

    #[inline(always)]
    fn block<C: Convert<H, N>, const N: usize>(converter: C, held: &mut [f32; N], rounded: &mut [H; N]) {
        *rounded = converter.round(*held);
        *held = converter.widen(*rounded);
    }
}

/// Reduces half-precision elements in `f32` and rounds the result. Stores it in both arrays if both are writable.
pub(super) struct Halves<H, O>(PhantomData<(H, O)>);

impl<H: Half, O: Operator<f32>> Fused for Halves<H, O> {
    type Half = H;
    type Element = H;
    type Beside = H;

    #[inline(always)]
    fn block<C: Convert<H, N>, const N: usize>(converter: C, one: &mut [H; N], other: &mut [H; N]) {
        let result = converter.round(apply_all::<O, N>(converter.widen(*one), converter.widen(*other)));
        (*one, *other) = (result, result);
    }
}

#[inline(always)]
fn apply_all<O: Operator<f32>, const N: usize>(one: [f32; N], other: [f32; N]) -> [f32; N] {
    std::array::from_fn(|lane| O::apply(one[lane], other[lane]))
}
