//! Elements that depend on rank, call and position, so that misplaced or stale elements are detected.

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use unisono::{Element, ReduceOp};

/// An element type, on the host and on GPUs.
pub(crate) trait Number: Element + DeviceRepr + ValidAsZeroBits {
    /// Returns a small number, or its absolute value if the type is unsigned.
    fn of(small: i8) -> Self;

    /// Returns a number with many digits, or `None` for integers, whose sums are always exact.
    fn of_many_digits(_: u64) -> Option<Self> {
        None
    }

    /// Returns the element's bits, zero-extended.
    fn bits(self) -> u64;
}

macro_rules! floats {
    ($($float:ty, $from:expr;)*) => {$(
        impl Number for $float {
            fn of(small: i8) -> Self {
                $from(f32::from(small))
            }

            fn of_many_digits(digits: u64) -> Option<Self> {
                // From -1 to 1.
                Some($from((digits >> 40) as f32 / (1 << 23) as f32 - 1.0))
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty, $of:expr;)*) => {$(
        impl Number for $integer {
            fn of(small: i8) -> Self {
                $of(small)
            }

            fn bits(self) -> u64 {
                self as u64
            }
        }
    )*};
}

floats! {
    f32, |number| number;
    f64, f64::from;
    f16, f16::from_f32;
    bf16, bf16::from_f32;
}

integers! {
    i32, i32::from;
    i64, i64::from;
    u8, i8::unsigned_abs;
    u32, |small: i8| u32::from(small.unsigned_abs());
    u64, |small: i8| u64::from(small.unsigned_abs());
}

/// Returns a hash of an element's origin: the rank, the number of the call, and the position.
fn mixed(rank: usize, call: u64, place: usize) -> u64 {
    let mut bits = place as u64 ^ (rank as u64) << 48 ^ call << 52;
    for factor in [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9] {
        bits = (bits ^ bits >> 31).wrapping_mul(factor);
    }
    bits ^ bits >> 29
}

/// Fills in numbers so small that every reduction over a few ranks is exact in every type, in any order of additions.
pub(crate) fn exact<T: Number>(elements: &mut [T], op: ReduceOp, rank: usize, call: u64) {
    for (place, element) in elements.iter_mut().enumerate() {
        let mixed = mixed(rank, call, place);
        let small = match op {
            ReduceOp::Product => [-2, -1, 1, 2][(mixed >> 62) as usize],
            _ => ((mixed >> 32) % 31) as i8 - 15,
        };
        *element = T::of(small);
    }
}

/// Fills in numbers whose sums are rounded, so that the order of additions matters. Returns false for integers, and leaves
/// them unchanged.
pub(crate) fn inexact<T: Number>(elements: &mut [T], rank: usize, call: u64) -> bool {
    for (place, element) in elements.iter_mut().enumerate() {
        match T::of_many_digits(mixed(rank, call, place)) {
            Some(number) => *element = number,
            None => return false,
        }
    }
    true
}
