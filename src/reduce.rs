//! The reduction kernels: every operation over every element type, on plain bytes.
//!
//! All of them are commutative to the last bit, so `a + b` on one rank and `b + a` on another agree;
//! [`ReduceOp`] says how for zeros of different sign. (Which bits a NaN carries is the processor's affair.)

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use unisono_collectives::named;

use crate::dtype::DType;

/// What a reduction does to two values.
///
/// Sums, means and products of the half formats are made in `f32`. A value is rounded when it is sent to
/// another rank, so it depends on the algorithm how often: `all-to-all`, `master-worker` and `round-robin` send
/// only inputs and results, and round once; the others send partial results, and round at every hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// Adds. Integers wrap around.
    Sum,
    /// Adds, and divides by the number of ranks at the end.
    ///
    /// The sum is in the element type, or in `f32` for the half formats as far as an algorithm lets it stay
    /// there. Integers wrap around as in [`ReduceOp::Sum`], and the quotient is rounded towards zero.
    Mean,
    /// Takes the smaller. NaN if either is; −0 is smaller than +0.
    Min,
    /// Takes the larger. NaN if either is; +0 is larger than −0.
    Max,
    /// Multiplies. Integers wrap around.
    Product,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        }
    }
}

named!(ReduceOp, "reduction");

/// Works `arrived` into `held`, element by element.
///
/// Both are whole, aligned elements, of the same number.
pub type Kernel = fn(held: &mut [u8], arrived: &[u8]);

/// The arithmetic of one element type.
trait Number: bytemuck::Pod {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn divided(self, divisor: usize) -> Self;
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn smaller(self, other: Self) -> Self {
                if self < other {
                    self
                } else if other < self {
                    other
                } else if self == other {
                    // Equal numbers have equal bits, but for zeros: there the sign bit decides.
                    Self::from_bits(self.to_bits() | other.to_bits())
                } else {
                    Self::NAN
                }
            }
            fn larger(self, other: Self) -> Self {
                if self > other {
                    self
                } else if other > self {
                    other
                } else if self == other {
                    Self::from_bits(self.to_bits() & other.to_bits())
                } else {
                    Self::NAN
                }
            }
            fn divided(self, divisor: usize) -> Self {
                self / divisor as Self
            }
        }
    )*};
}

macro_rules! halves {
    ($($half:ty),*) => {$(
        impl Number for $half {
            fn sum(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() + other.to_f32())
            }
            fn product(self, other: Self) -> Self {
                Self::from_f32(self.to_f32() * other.to_f32())
            }
            fn smaller(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().smaller(other.to_f32()))
            }
            fn larger(self, other: Self) -> Self {
                Self::from_f32(self.to_f32().larger(other.to_f32()))
            }
            fn divided(self, divisor: usize) -> Self {
                Self::from_f32(self.to_f32().divided(divisor))
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Number for $integer {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            fn divided(self, divisor: usize) -> Self {
                // More ranks than the type can count: every quotient is then below one.
                Self::try_from(divisor).map_or(0, |divisor| self / divisor)
            }
        }
    )*};
}

floats!(f32, f64);
halves!(f16, bf16);
integers!(i32, i64, u8, u32, u64);

/// Calls `$function::<T>($arguments)` for the Rust type of a [`DType`].
macro_rules! for_dtype {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => $function::<f32>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::I64 => $function::<i64>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::U64 => $function::<u64>($($argument),*),
        }
    };
}

pub(crate) use for_dtype;

/// The kernel that reduces elements of one type.
pub fn kernel(dtype: DType, op: ReduceOp) -> Kernel {
    for_dtype!(dtype, kernel_of(op))
}

fn kernel_of<T: Number>(op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => |held, arrived| zip::<T>(held, arrived, T::sum),
        ReduceOp::Min => |held, arrived| zip::<T>(held, arrived, T::smaller),
        ReduceOp::Max => |held, arrived| zip::<T>(held, arrived, T::larger),
        ReduceOp::Product => |held, arrived| zip::<T>(held, arrived, T::product),
    }
}

#[inline(always)]
fn zip<T: Number>(held: &mut [u8], arrived: &[u8], apply: impl Fn(T, T) -> T) {
    let held: &mut [T] = bytemuck::cast_slice_mut(held);
    let arrived: &[T] = bytemuck::cast_slice(arrived);
    assert_eq!(held.len(), arrived.len(), "as many elements arrive as are held");
    for (held, arrived) in held.iter_mut().zip(arrived) {
        *held = apply(*held, *arrived);
    }
}

/// Divides every element by the number of ranks: what makes a mean of a sum.
pub(crate) fn divide(dtype: DType, elements: &mut [u8], ranks: usize) {
    fn divide_all<T: Number>(elements: &mut [u8], ranks: usize) {
        for element in bytemuck::cast_slice_mut::<u8, T>(elements) {
            *element = element.divided(ranks);
        }
    }
    for_dtype!(dtype, divide_all(elements, ranks));
}

/// How many elements of a half format are converted at a time: they fit the first-level cache.
const BLOCK: usize = 1024;

/// Half formats held in `f32`, so that they are rounded when they travel and not at every addition.
#[derive(Debug, Clone, Copy)]
pub struct Widening {
    /// `f32` elements take the place of what was held.
    pub replace: Kernel,
    /// Half elements are reduced into `f32` elements.
    pub reduce: Kernel,
    /// Rounds `f32` elements to half elements, and what is held with them: whoever sends a value holds the
    /// same value.
    pub round: fn(held: &mut [u8], rounded: &mut [u8]),
}

impl Widening {
    /// The conversions of one half format; `None` for other types, and for operations that never round.
    pub fn of(dtype: DType, op: ReduceOp) -> Option<Self> {
        match dtype {
            DType::F16 => Self::of_half::<f16>(op),
            DType::BF16 => Self::of_half::<bf16>(op),
            _ => None,
        }
    }

    fn of_half<H: Half>(op: ReduceOp) -> Option<Self> {
        let reduce: Kernel = match op {
            ReduceOp::Sum | ReduceOp::Mean => |held, arrived| widening_zip::<H>(held, arrived, f32::sum),
            ReduceOp::Product => |held, arrived| widening_zip::<H>(held, arrived, f32::product),
            ReduceOp::Min | ReduceOp::Max => return None,
        };
        Some(Self { replace: widen::<H>, reduce, round: round::<H> })
    }
}

trait Half: bytemuck::Pod {
    fn widen(from: &[Self], into: &mut [f32]);
    fn round(from: &[f32], into: &mut [Self]);
}

macro_rules! half_slices {
    ($($half:ty),*) => {$(
        impl Half for $half {
            fn widen(from: &[Self], into: &mut [f32]) {
                from.convert_to_f32_slice(into);
            }
            fn round(from: &[f32], into: &mut [Self]) {
                into.convert_from_f32_slice(from);
            }
        }
    )*};
}

half_slices!(f16, bf16);

fn widen<H: Half>(held: &mut [u8], arrived: &[u8]) {
    H::widen(bytemuck::cast_slice(arrived), bytemuck::cast_slice_mut(held));
}

fn round<H: Half>(held: &mut [u8], rounded: &mut [u8]) {
    let held: &mut [f32] = bytemuck::cast_slice_mut(held);
    let rounded: &mut [H] = bytemuck::cast_slice_mut(rounded);
    H::round(held, rounded);
    H::widen(rounded, held);
}

#[inline(always)]
fn widening_zip<H: Half>(held: &mut [u8], arrived: &[u8], apply: impl Fn(f32, f32) -> f32) {
    let held: &mut [f32] = bytemuck::cast_slice_mut(held);
    let arrived: &[H] = bytemuck::cast_slice(arrived);
    assert_eq!(held.len(), arrived.len(), "as many elements arrive as are held");
    let mut block = [0.0; BLOCK];
    for (held, arrived) in held.chunks_mut(BLOCK).zip(arrived.chunks(BLOCK)) {
        H::widen(arrived, &mut block[..arrived.len()]);
        for (held, arrived) in held.iter_mut().zip(&block) {
            *held = apply(*held, *arrived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce<T: crate::Element>(op: ReduceOp, held: &[T], arrived: &[T]) -> Vec<T> {
        let mut held = held.to_vec();
        kernel(T::DTYPE, op)(bytemuck::cast_slice_mut(&mut held), bytemuck::cast_slice(arrived));
        held
    }

    #[test]
    fn every_operation_on_a_few_numbers() {
        assert_eq!(reduce(ReduceOp::Sum, &[1.5_f32, -2.0], &[2.0, 0.25]), [3.5, -1.75]);
        assert_eq!(reduce(ReduceOp::Product, &[3_i64, -2], &[5, 7]), [15, -14]);
        assert_eq!(reduce(ReduceOp::Min, &[3_u8, 9], &[5, 7]), [3, 7]);
        assert_eq!(reduce(ReduceOp::Max, &[bf16::ONE], &[bf16::from_f32(-4.0)]), [bf16::ONE]);
        assert_eq!(reduce(ReduceOp::Sum, &[250_u8], &[10]), [4], "integers wrap around");
    }

    #[test]
    fn zeros_and_nans_commute() {
        for (one, other) in [(0.0_f64, -0.0_f64), (-0.0, 0.0)] {
            assert!(reduce(ReduceOp::Min, &[one], &[other])[0].is_sign_negative());
            assert!(reduce(ReduceOp::Max, &[one], &[other])[0].is_sign_positive());
        }
        for (one, other) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(reduce(ReduceOp::Min, &[one], &[other])[0].is_nan());
            assert!(reduce(ReduceOp::Max, &[one], &[other])[0].is_nan());
        }
    }

    #[test]
    fn an_integer_mean_is_rounded_towards_zero() {
        let mut elements = [7_i32, -7, 9];
        divide(DType::I32, bytemuck::cast_slice_mut(&mut elements), 3);
        assert_eq!(elements, [2, -2, 3]);
        let mut bytes = [255_u8];
        divide(DType::U8, &mut bytes, 300);
        assert_eq!(bytes, [0]);
    }

    #[test]
    fn widened_halves_are_rounded_once() {
        let widening = Widening::of(DType::BF16, ReduceOp::Sum).unwrap();
        let tiny = [bf16::from_f32(1.0 / 512.0)];
        let mut held = [1.0_f32];
        for _ in 0..4 {
            (widening.reduce)(bytemuck::cast_slice_mut(&mut held), bytemuck::cast_slice(&tiny));
        }
        // One at a time they would all be lost: 1 + 1/512 rounds to 1.
        let mut rounded = [bf16::ZERO];
        (widening.round)(bytemuck::cast_slice_mut(&mut held), bytemuck::cast_slice_mut(&mut rounded));
        assert_eq!(rounded[0].to_f32(), 1.0 + 1.0 / 128.0);
        assert_eq!(held[0], rounded[0].to_f32());
    }
}
