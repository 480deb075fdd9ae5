//! Element types and operators, and the one loop that reduces.

use std::ffi::c_int;

use half::{bf16, f16};

/// A type of NCCL's `ncclDataType_t`, as far as it is supported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataType {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    /// [`reduce`] for this type.
    pub(crate) reduce: unsafe fn(Operator, &[*const u8], *mut u8, usize),
}

impl DataType {
    pub(crate) fn from_number(number: c_int) -> Option<Self> {
        Some(match number {
            1 => Self::of::<u8>("U8"),
            2 => Self::of::<i32>("I32"),
            3 => Self::of::<u32>("U32"),
            4 => Self::of::<i64>("I64"),
            5 => Self::of::<u64>("U64"),
            6 => Self::of::<f16>("F16"),
            7 => Self::of::<f32>("F32"),
            8 => Self::of::<f64>("F64"),
            9 => Self::of::<bf16>("BF16"),
            _ => return None,
        })
    }

    fn of<T: Number>(name: &'static str) -> Self {
        Self { name, bytes: size_of::<T>(), reduce: reduce::<T> }
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
    /// The term of a rank's value in a reduction over this many ranks.
    fn term(self, op: Operator, ranks: usize) -> Self::Held;
    fn combine(op: Operator, a: Self::Held, b: Self::Held) -> Self::Held;
    fn result(held: Self::Held, op: Operator, ranks: usize) -> Self;
}

macro_rules! floats {
    ($($number:ty as $held:ty: $hold:expr, $round:expr;)*) => {$(
        impl Number for $number {
            type Held = $held;
            fn term(self, op: Operator, ranks: usize) -> $held {
                let factor = if op == Operator::Mean { 1.0 / ranks as $held } else { 1.0 };
                $hold(self) * factor
            }
            fn combine(op: Operator, a: $held, b: $held) -> $held {
                match op {
                    Operator::Sum | Operator::Mean => a + b,
                    Operator::Product => a * b,
                    Operator::Max => a.max(b),
                    Operator::Min => a.min(b),
                }
            }
            fn result(held: $held, _: Operator, _: usize) -> Self {
                $round(held)
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
            fn term(self, _: Operator, _: usize) -> Self {
                self
            }
            fn combine(op: Operator, a: Self, b: Self) -> Self {
                match op {
                    Operator::Sum | Operator::Mean => a.wrapping_add(b),
                    Operator::Product => a.wrapping_mul(b),
                    Operator::Max => a.max(b),
                    Operator::Min => a.min(b),
                }
            }
            fn result(held: Self, op: Operator, ranks: usize) -> Self {
                if op == Operator::Mean { held / ranks as Self } else { held }
            }
        }
    )*};
}

integers!(u8, i32, u32, i64, u64);

/// Reduces `count` elements of each rank, rank 0's first, into `to`.
///
/// # Safety
/// Each of `from` must be valid for reads of this many elements, and `to`, which overlaps none of them, for writes.
unsafe fn reduce<T: Number>(op: Operator, from: &[*const u8], to: *mut u8, count: usize) {
    let ranks = from.len();
    for index in 0..count {
        // SAFETY: the index is below the count; the read does not need alignment.
        let values = from.iter().map(|rank| unsafe { rank.cast::<T>().add(index).read_unaligned() });
        let terms = values.map(|value| value.term(op, ranks));
        let held = terms.reduce(|a, b| T::combine(op, a, b)).expect("there are ranks");
        // SAFETY: the index is below the count; the write does not need alignment.
        unsafe { to.cast::<T>().add(index).write_unaligned(T::result(held, op, ranks)) };
    }
}
