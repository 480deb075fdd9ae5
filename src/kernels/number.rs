//! Arithmetic on single elements of every type, without branches, so that loops over it vectorise.

use half::{bf16, f16};

use super::halves::Half;

pub(super) trait Number: bytemuck::Pod {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    // Calls apply these to integers only. For other types they operate on the bits, and on whether a value is zero.
    fn bit_and(self, other: Self) -> Self;
    fn bit_or(self, other: Self) -> Self;
    fn bit_xor(self, other: Self) -> Self;
    fn is_true(self) -> bool;
    fn of_truth(truth: bool) -> Self;
    #[inline(always)]
    fn logical_and(self, other: Self) -> Self {
        Self::of_truth(self.is_true() & other.is_true())
    }
    #[inline(always)]
    fn logical_or(self, other: Self) -> Self {
        Self::of_truth(self.is_true() | other.is_true())
    }
    #[inline(always)]
    fn logical_xor(self, other: Self) -> Self {
        Self::of_truth(self.is_true() ^ other.is_true())
    }
    fn divide(elements: &mut [Self], divisor: usize);
}

/// A binary operation on elements.
pub(super) trait Operator {
    fn apply<T: Number>(one: T, other: T) -> T;
}

macro_rules! operators {
    ($($operator:ident => $method:ident),*) => {$(
        pub(super) struct $operator;

        impl Operator for $operator {
            #[inline(always)]
            fn apply<T: Number>(one: T, other: T) -> T {
                one.$method(other)
            }
        }
    )*};
}

operators!(
    Sum => sum, Product => product, Smaller => smaller, Larger => larger, BitAnd => bit_and, BitOr => bit_or, BitXor => bit_xor,
    LogicalAnd => logical_and, LogicalOr => logical_or, LogicalXor => logical_xor
);

/// The bitwise and logical operations of a type, by its conversions to bits and back.
macro_rules! bitwise {
    ($bits:expr, $of_bits:expr, $zero:expr, $one:expr) => {
        #[inline(always)]
        fn bit_and(self, other: Self) -> Self {
            $of_bits($bits(self) & $bits(other))
        }

        #[inline(always)]
        fn bit_or(self, other: Self) -> Self {
            $of_bits($bits(self) | $bits(other))
        }

        #[inline(always)]
        fn bit_xor(self, other: Self) -> Self {
            $of_bits($bits(self) ^ $bits(other))
        }

        #[inline(always)]
        fn is_true(self) -> bool {
            self != $zero
        }

        #[inline(always)]
        fn of_truth(truth: bool) -> Self {
            if truth { $one } else { $zero }
        }
    };
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            bitwise!(Self::to_bits, Self::from_bits, 0.0, 1.0);

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
            bitwise!(Self::to_bits, Self::from_bits, Self::ZERO, Self::ONE);

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
            bitwise!(Self::from, Self::from, 0, 1);

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
