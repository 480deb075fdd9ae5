//! Arithmetic on single elements of every type, without branches, so that loops over it vectorise.

use std::ops::{BitAnd, BitOr, BitXor};

use bytemuck::Pod;
use half::{bf16, f16};

use super::halves::Half;

pub(super) trait Number: Pod {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn divide(elements: &mut [Self], divisor: usize);
}

/// The bits of an integer, signed or not.
pub(super) trait Bits:
    Pod + PartialEq + From<bool> + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    #[inline(always)]
    fn is_true(self) -> bool {
        self != Self::zeroed()
    }
}

impl Bits for u8 {}
impl Bits for u32 {}
impl Bits for u64 {}

pub(super) trait Operator<T> {
    fn apply(one: T, other: T) -> T;
}

macro_rules! operators {
    ($($operator:ident of $kind:ident = |$one:ident, $other:ident| $result:expr),*) => {$(
        pub(super) struct $operator;

        impl<T: $kind> Operator<T> for $operator {
            #[inline(always)]
            fn apply($one: T, $other: T) -> T {
                $result
            }
        }
    )*};
}

operators!(
    Sum of Number = |one, other| one.sum(other),
    Product of Number = |one, other| one.product(other),
    Smaller of Number = |one, other| one.smaller(other),
    Larger of Number = |one, other| one.larger(other),
    BitsOfBoth of Bits = |one, other| one & other,
    BitsOfEither of Bits = |one, other| one | other,
    BitsOfOne of Bits = |one, other| one ^ other,
    LogicalAnd of Bits = |one, other| T::from(one.is_true() & other.is_true()),
    LogicalOr of Bits = |one, other| T::from(one.is_true() | other.is_true()),
    LogicalXor of Bits = |one, other| T::from(one.is_true() ^ other.is_true())
);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self * other
            }

            /// Comparing by `<` in both orders gives the same value, except for zeros and NaNs. For two zeros, combining the sign bits suffices. For
            /// a NaN, its bits combined with any others are a NaN.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let one = if self < other { self } else { other };
                let two = if other < self { other } else { self };
                Self::from_bits(one.to_bits() | two.to_bits())
            }

            /// As for `smaller`, but the sign bit must be set in both.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let one = if self > other { self } else { other }.to_bits();
                let two = if other > self { other } else { self }.to_bits();
                let sign = (-0.0 as Self).to_bits();
                Self::from_bits((one & two) | ((one | two) & !sign))
            }

            #[inline(always)]
            fn divide(elements: &mut [Self], divisor: usize) {
                let (divisor, exact) = (divisor as Self, divisor.is_power_of_two());
                // The reciprocal of a power of two is exact, so the product equals the quotient.
                let reciprocal = divisor.recip();
                for element in elements {
                    *element = if exact { *element * reciprocal } else { *element / divisor };
                }
            }
        }
    )*};
}

/// Maps the bits of a half to an integer in the order of the numbers. The map is its own inverse.
#[inline(always)]
fn ordered(bits: i16) -> i16 {
    bits ^ ((bits >> 15) & i16::MAX)
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Number for $half {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self::rounded(self.widened() + other.widened())
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                Self::rounded(self.widened() * other.widened())
            }

            /// Shifts the integers up so that the NaNs above infinity wrap around to the lower end, where they are the smallest.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                const SHIFT: i16 = i16::MAX - <$half as Half>::INFINITY;
                let one = ordered(self.to_bits() as i16).wrapping_add(SHIFT);
                let two = ordered(other.to_bits() as i16).wrapping_add(SHIFT);
                Self::from_bits(ordered(one.min(two).wrapping_sub(SHIFT)) as u16)
            }

            /// Shifts the integers down, likewise.
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                const SHIFT: i16 = i16::MAX - <$half as Half>::INFINITY;
                let one = ordered(self.to_bits() as i16).wrapping_sub(SHIFT);
                let two = ordered(other.to_bits() as i16).wrapping_sub(SHIFT);
                Self::from_bits(ordered(one.max(two).wrapping_add(SHIFT)) as u16)
            }

            #[inline(always)]
            fn divide(elements: &mut [Self], divisor: usize) {
                for element in elements {
                    *element = Self::rounded(element.widened() / divisor as f32);
                }
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }

            #[inline(always)]
            fn divide(elements: &mut [Self], divisor: usize) {
                for element in elements {
                    // With more ranks than the type can represent, every quotient is below one.
                    *element = Self::try_from(divisor).map_or(0, |divisor| *element / divisor);
                }
            }
        }
    )*};
}

floats!(f32, f64);
halves!(f16, bf16);
integers!(i32, i64, u8, u32, u64);
