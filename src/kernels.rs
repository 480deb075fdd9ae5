//! Kernels over bytes: copies, and every reduction of every element type.
//!
//! All kernels are bitwise commutative, so `a + b` on one rank equals `b + a` on another. [`ReduceOp`] defines this for zeros of
//! different sign. (Which of two NaN payloads a sum or product keeps depends on the processor and the compiler.)

use unisono_collectives::named;

use crate::dtype::{DType, with_type};

mod accumulator;
mod claim;
mod copy;
mod custom;
mod fused;
mod halves;
#[allow(unsafe_code, reason = "instructions that not every processor has")]
mod lanes;
#[allow(unsafe_code, reason = "functions of instructions that not every processor has")]
mod level;
mod number;
mod passes;

pub use accumulator::{Accumulator, Codec};
pub(crate) use claim::{claim, take};
pub use copy::copy;
pub use custom::Custom;
pub(crate) use custom::Definition;
use fused::{Reading, Writing};
pub use level::{Level, Loop};
use number::{
    BitsOfBoth, BitsOfEither, BitsOfOne, Larger, LogicalAnd, LogicalOr, LogicalXor, Product, Smaller, Sum,
};
use passes::{Arithmetic, Divide, Elements};

/// A reduction of two values.
///
/// Sums, means and products of half-precision elements are computed in `f32`. A value is rounded when it is sent to another
/// rank, so the number of roundings depends on the algorithm: `all-to-all`, `master-worker` and `round-robin` send only inputs
/// and results, and round once; the others send partial results, and round at every hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Adds. Integers wrap around.
    Sum,
    /// Adds, and divides by the number of ranks at the end.
    ///
    /// The sum is computed in the element type, or in `f32` for half precision as far as the algorithm permits. Integers wrap
    /// around as in [`ReduceOp::Sum`], and the quotient is rounded towards zero.
    Mean,
    /// The smaller value, or NaN if either is NaN; −0 is smaller than +0.
    Min,
    /// The larger value, or NaN if either is NaN; +0 is larger than −0.
    Max,
    /// Multiplies. Integers wrap around.
    Product,
    /// The bits that are set in both integers.
    BitAnd,
    /// The bits that are set in either integer.
    BitOr,
    /// The bits that are set in exactly one of the integers.
    BitXor,
    /// 1 if both integers are nonzero, else 0.
    ///
    /// A result of a single rank, such as rank 0's in a scan, is that rank's value unchanged, as in MPI.
    LogicalAnd,
    /// 1 if either integer is nonzero, else 0; see [`ReduceOp::LogicalAnd`] for one rank.
    LogicalOr,
    /// 1 if exactly one of the integers is nonzero, else 0; see [`ReduceOp::LogicalAnd`] for one rank.
    LogicalXor,
    /// A custom reduction, made by [`ReduceOp::custom`].
    Custom(Custom),
}

impl ReduceOp {
    /// All reductions except custom ones.
    pub const ALL: [Self; 11] = [
        Self::Sum,
        Self::Mean,
        Self::Min,
        Self::Max,
        Self::Product,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
    ];

    /// Returns whether the reduction is defined for a type. Bitwise and logical reductions are defined for integers, custom reductions for
    /// their own type, and all others for every type.
    ///
    /// ```
    /// use unisono::{DType, ReduceOp};
    ///
    /// assert!(ReduceOp::BitXor.is_defined_for(DType::U32) && !ReduceOp::BitXor.is_defined_for(DType::F32));
    /// ```
    pub fn is_defined_for(self, dtype: DType) -> bool {
        match self {
            Self::Sum | Self::Mean | Self::Min | Self::Max | Self::Product => true,
            Self::BitAnd
            | Self::BitOr
            | Self::BitXor
            | Self::LogicalAnd
            | Self::LogicalOr
            | Self::LogicalXor => !dtype.is_float(),
            Self::Custom(custom) => custom.element().0 == dtype,
        }
    }

    /// Returns the name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
            Self::BitAnd => "bit-and",
            Self::BitOr => "bit-or",
            Self::BitXor => "bit-xor",
            Self::LogicalAnd => "logical-and",
            Self::LogicalOr => "logical-or",
            Self::LogicalXor => "logical-xor",
            Self::Custom(custom) => custom.name(),
        }
    }

    /// Returns whether the order of operands does not matter. It matters only for some custom reductions.
    pub fn is_commutative(self) -> bool {
        !matches!(self, Self::Custom(custom) if !custom.is_commutative())
    }
}

named!(ReduceOp, "reduction");

/// Reduces `arrived` into `held`, element by element.
///
/// Both consist of the same number of whole, aligned elements.
pub type Kernel = fn(held: &mut [u8], arrived: &[u8]);

/// Reduces two arrays into both, in one pass. Two ranks that share memory each process one half of the elements in this way.
///
/// Both consist of the same number of whole, aligned elements, and are bitwise equal afterwards. Half-precision elements are
/// reduced in `f32` and rounded once. A mean is only summed, as by a [`Kernel`].
pub type Joint = fn(one: &mut [u8], other: &mut [u8]);

/// Compiles `$pass` for a reduction of elements of type `$t`. Half-precision types have other operations for sums and products.
macro_rules! compiled {
    ($level:expr, $op:expr, $pass:ident, $t:ident) => {
        match $op {
            ReduceOp::Sum | ReduceOp::Mean => $level.compiled::<$pass<<$t as Arithmetic>::Combined<Sum>>>(),
            ReduceOp::Product => $level.compiled::<$pass<<$t as Arithmetic>::Combined<Product>>>(),
            ReduceOp::Min => $level.compiled::<$pass<Elements<$t, Smaller>>>(),
            ReduceOp::Max => $level.compiled::<$pass<Elements<$t, Larger>>>(),
            ReduceOp::BitAnd => compiled_for_bits!($level, $pass, $t, BitsOfBoth),
            ReduceOp::BitOr => compiled_for_bits!($level, $pass, $t, BitsOfEither),
            ReduceOp::BitXor => compiled_for_bits!($level, $pass, $t, BitsOfOne),
            ReduceOp::LogicalAnd => compiled_for_bits!($level, $pass, $t, LogicalAnd),
            ReduceOp::LogicalOr => compiled_for_bits!($level, $pass, $t, LogicalOr),
            ReduceOp::LogicalXor => compiled_for_bits!($level, $pass, $t, LogicalXor),
            ReduceOp::Custom(custom) => unreachable!("{custom:?} has its own function"),
        }
    };
}

/// Compiles `$pass` for the bits of integers of type `$t`. (No call uses it for other types: [`ReduceOp::is_defined_for`].)
macro_rules! compiled_for_bits {
    ($level:expr, $pass:ident, $t:ident, $op:ident) => {
        match size_of::<$t>() {
            1 => $level.compiled::<$pass<Elements<u8, $op>>>(),
            4 => $level.compiled::<$pass<Elements<u32, $op>>>(),
            _ => $level.compiled::<$pass<Elements<u64, $op>>>(),
        }
    };
}

/// Returns the kernel for an element type and reduction, with the best instructions of this processor.
///
/// # Panics
/// If the reduction is custom.
pub fn kernel(dtype: DType, op: ReduceOp) -> Kernel {
    with_type!(dtype, T => compiled!(Level::best(), op, Reading, T))
}

/// Returns the joint reduction for an element type and reduction, which writes the result to both arrays.
///
/// # Panics
/// As [`kernel()`].
pub fn joint(dtype: DType, op: ReduceOp) -> Joint {
    with_type!(dtype, T => compiled!(Level::best(), op, Writing, T))
}

/// Divides every element by the number of ranks: turns sums into means.
pub fn divide(dtype: DType, elements: &mut [u8], ranks: usize) {
    with_type!(dtype, T => Level::best().compiled::<Divide<T>>())(elements, ranks);
}

#[cfg(test)]
mod tests;
