//! Reductions in an element type, and divisions.

use std::marker::PhantomData;

use bytemuck::Pod;
use half::{bf16, f16};

use super::accumulator::Halves;
use super::fused::Fused;
use super::lanes::{Convert, Lanes};
use super::level::Pass;
use super::number::{Number, Operator};

/// The operations of sums and products, which half-precision types compute in `f32`.
pub(super) trait Arithmetic: Number {
    type Combined<O: Operator<Self> + Operator<f32>>: Fused;
}

macro_rules! arithmetic {
    ($($number:ty),* => $combined:ty) => {$(
        impl Arithmetic for $number {
            type Combined<O: Operator<Self> + Operator<f32>> = $combined;
        }
    )*};
}

arithmetic!(f32, f64, i32, i64, u8, u32, u64 => Elements<Self, O>);
arithmetic!(f16, bf16 => Halves<Self, O>);

/// Reduces elements in their own type. Stores the result in both arrays if both are writable.
pub(super) struct Elements<T, O>(PhantomData<(T, O)>);

impl<T: Pod, O: Operator<T>> Fused for Elements<T, O> {
    /// No element is converted: this type has no instructions for it, so there are no blocks.
    type Half = bf16;
    type Element = T;
    type Beside = T;

    #[inline(always)]
    fn block<C: Convert<bf16, N>, const N: usize>(_: C, one: &mut [T; N], other: &mut [T; N]) {
        *one = std::array::from_fn(|lane| O::apply(one[lane], other[lane]));
        *other = *one;
    }
}

pub(super) struct Divide<T>(PhantomData<T>);

impl<T: Number> Pass for Divide<T> {
    type Beside<'a> = usize;

    #[inline(always)]
    fn run<L: Lanes>(_: L, elements: &mut [u8], ranks: usize) {
        T::divide(bytemuck::cast_slice_mut(elements), ranks);
    }
}
