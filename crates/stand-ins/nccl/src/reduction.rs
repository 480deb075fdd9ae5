//! Element types and operators, and the one loop that reduces.

use std::ffi::c_int;

use half::{bf16, f16};

/// NCCL's `ncclDataType_t`, as far as it is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataType {
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    BF16,
}

impl DataType {
    pub(crate) fn from_number(number: c_int) -> Option<Self> {
        Some(match number {
            1 => Self::U8,
            2 => Self::I32,
            3 => Self::U32,
            4 => Self::I64,
            5 => Self::U64,
            6 => Self::F16,
            7 => Self::F32,
            8 => Self::F64,
            9 => Self::BF16,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// NCCL's built-in `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Sum,
    Product,
    Max,
    Min,
    Mean,
}

impl Operator {
    pub(crate) fn from_number(number: c_int) -> Option<Self> {
        [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Mean]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// An element type. A half format is held as `Held` during a reduction.
trait Number: Copy {
    type Held: Copy;
    fn hold(self) -> Self::Held;
    fn round(held: Self::Held) -> Self;
    fn add(a: Self::Held, b: Self::Held) -> Self::Held;
    fn multiply(a: Self::Held, b: Self::Held) -> Self::Held;
    fn greater(a: Self::Held, b: Self::Held) -> Self::Held;
    fn smaller(a: Self::Held, b: Self::Held) -> Self::Held;
    /// The term of a rank in a mean, and the mean from the sum of the terms.
    fn part(held: Self::Held, ranks: usize) -> Self::Held;
    fn mean(sum: Self::Held, ranks: usize) -> Self::Held;
}

macro_rules! floats {
    ($($number:ty as $held:ty: $hold:expr, $round:expr;)*) => {$(
        impl Number for $number {
            type Held = $held;
            fn hold(self) -> $held {
                $hold(self)
            }
            fn round(held: $held) -> Self {
                $round(held)
            }
            fn add(a: $held, b: $held) -> $held {
                a + b
            }
            fn multiply(a: $held, b: $held) -> $held {
                a * b
            }
            fn greater(a: $held, b: $held) -> $held {
                a.max(b)
            }
            fn smaller(a: $held, b: $held) -> $held {
                a.min(b)
            }
            fn part(held: $held, ranks: usize) -> $held {
                held * (1.0 / ranks as $held)
            }
            fn mean(sum: $held, _: usize) -> $held {
                sum
            }
        }
    )*};
}

floats! {
    f32 as f32: |value| value, |held| held;
    f64 as f64: |value| value, |held| held;
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
}

macro_rules! integers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            type Held = Self;
            fn hold(self) -> Self {
                self
            }
            fn round(held: Self) -> Self {
                held
            }
            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            fn multiply(a: Self, b: Self) -> Self {
                a.wrapping_mul(b)
            }
            fn greater(a: Self, b: Self) -> Self {
                a.max(b)
            }
            fn smaller(a: Self, b: Self) -> Self {
                a.min(b)
            }
            fn part(held: Self, _: usize) -> Self {
                held
            }
            fn mean(sum: Self, ranks: usize) -> Self {
                sum / ranks as Self
            }
        }
    )*};
}

integers!(u8, i32, u32, i64, u64);

/// Reduces `count` elements of each rank, rank 0's first, into `to`.
///
/// # Safety
/// Each of `from` must be valid for reads of this many elements, and `to`, which overlaps none of them, for writes.
pub(crate) unsafe fn reduce(dtype: DataType, op: Operator, from: &[*const u8], to: *mut u8, count: usize) {
    // SAFETY: as the caller promises.
    unsafe {
        match dtype {
            DataType::U8 => of::<u8>(op, from, to, count),
            DataType::I32 => of::<i32>(op, from, to, count),
            DataType::U32 => of::<u32>(op, from, to, count),
            DataType::I64 => of::<i64>(op, from, to, count),
            DataType::U64 => of::<u64>(op, from, to, count),
            DataType::F16 => of::<f16>(op, from, to, count),
            DataType::F32 => of::<f32>(op, from, to, count),
            DataType::F64 => of::<f64>(op, from, to, count),
            DataType::BF16 => of::<bf16>(op, from, to, count),
        }
    }
}

/// Reduces values of one type.
///
/// # Safety
/// As for [`reduce`].
unsafe fn of<T: Number>(op: Operator, from: &[*const u8], to: *mut u8, count: usize) {
    let ranks = from.len();
    // SAFETY: as the caller promises.
    unsafe {
        match op {
            Operator::Sum => each(from, to, count, T::hold, T::add, T::round),
            Operator::Product => each(from, to, count, T::hold, T::multiply, T::round),
            Operator::Max => each(from, to, count, T::hold, T::greater, T::round),
            Operator::Min => each(from, to, count, T::hold, T::smaller, T::round),
            Operator::Mean => {
                let part = |value: T| T::part(value.hold(), ranks);
                each(from, to, count, part, T::add, |sum| T::round(T::mean(sum, ranks)));
            }
        }
    }
}

/// The loop: `first` and `last` apply to one value, `combine` to two.
///
/// # Safety
/// As for [`reduce`].
unsafe fn each<T: Copy, H: Copy>(
    from: &[*const u8],
    to: *mut u8,
    count: usize,
    first: impl Fn(T) -> H,
    combine: impl Fn(H, H) -> H,
    last: impl Fn(H) -> T,
) {
    for index in 0..count {
        // SAFETY: the index is below the count; the read does not need alignment.
        let values = from.iter().map(|rank| first(unsafe { rank.cast::<T>().add(index).read_unaligned() }));
        let value = last(values.reduce(&combine).expect("there are ranks"));
        // SAFETY: the index is below the count; the write does not need alignment.
        unsafe { to.cast::<T>().add(index).write_unaligned(value) };
    }
}
