//! Loops over whole arrays.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::accumulator::Halves;
use super::fused::{Reading, Writing};
use super::lanes::Lanes;
use super::level::Pass;
use super::number::{Number, Operator};

/// The passes of sums and products, which half-precision types compute in `f32`.
pub(super) trait Arithmetic: Number {
    type Reduce<O: Operator>: for<'a> Pass<Beside<'a> = &'a [u8]>;
    type Join<O: Operator>: for<'a> Pass<Beside<'a> = &'a mut [u8]>;
}

macro_rules! arithmetic {
    ($($number:ty),* => $reduce:ty, $join:ty) => {$(
        impl Arithmetic for $number {
            type Reduce<O: Operator> = $reduce;
            type Join<O: Operator> = $join;
        }
    )*};
}

arithmetic!(f32, f64, i32, i64, u8, u32, u64 => Reduce<Self, O>, Join<Self, O>);
arithmetic!(f16, bf16 => Reading<Halves<Self, O>>, Writing<Halves<Self, O>>);

/// Reduces the incoming array into the held one.
pub(super) struct Reduce<T, O>(PhantomData<(T, O)>);

impl<T: Number, O: Operator> Pass for Reduce<T, O> {
    type Beside<'a> = &'a [u8];

    #[inline(always)]
    fn run<L: Lanes>(_: L, held: &mut [u8], arrived: &[u8]) {
        let held: &mut [T] = bytemuck::cast_slice_mut(held);
        let arrived: &[T] = bytemuck::cast_slice(arrived);
        assert_eq!(held.len(), arrived.len(), "both arrays must have the same length");
        for (held, arrived) in held.iter_mut().zip(arrived) {
            *held = O::apply(*held, *arrived);
        }
    }
}

/// Reduces two arrays into both.
pub(super) struct Join<T, O>(PhantomData<(T, O)>);

impl<T: Number, O: Operator> Pass for Join<T, O> {
    type Beside<'a> = &'a mut [u8];

    #[inline(always)]
    fn run<L: Lanes>(_: L, one: &mut [u8], other: &mut [u8]) {
        let one: &mut [T] = bytemuck::cast_slice_mut(one);
        let other: &mut [T] = bytemuck::cast_slice_mut(other);
        assert_eq!(one.len(), other.len(), "both arrays must have the same length");
        for (one, other) in one.iter_mut().zip(other) {
            let joined = O::apply(*one, *other);
            (*one, *other) = (joined, joined);
        }
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
