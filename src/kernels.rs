//! The reduction kernels: every operation over every element type, on plain bytes.
//!
//! All of them are commutative to the last bit, so `a + b` on one rank and `b + a` on another agree;
//! [`ReduceOp`] says how for zeros of different sign. (Of two NaNs, whose payload a sum or a product carries is
//! the affair of the processor and the compiler.)

use half::{bf16, f16};
use unisono_collectives::named;

use crate::dtype::DType;

mod accumulator;
mod halves;
#[allow(unsafe_code, reason = "instructions that not every processor has")]
mod lanes;
#[allow(unsafe_code, reason = "functions of instructions that not every processor has")]
mod level;
mod number;
mod passes;

pub use accumulator::Accumulator;
pub use lanes::Lanes;
pub use level::{Level, Pass};
use number::{Larger, Number, Product, Smaller, Sum};
use passes::{Arithmetic, Divide, Join, Reduce};

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

/// Reduces two arrays to one, which both become, in one pass: for two ranks that share memory, where each does
/// this to one half of the elements.
///
/// Both are whole, aligned elements, of the same number, and hold the same bits afterwards. Half formats are
/// reduced in `f32` and rounded once. A mean is only added up, as by a [`Kernel`].
pub type Joint = fn(one: &mut [u8], other: &mut [u8]);

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

/// The kernel that reduces elements of one type, in the best instructions that the processor has.
pub fn kernel(dtype: DType, op: ReduceOp) -> Kernel {
    for_dtype!(dtype, reduction(Level::best(), op))
}

fn reduction<T: Arithmetic>(level: Level, op: ReduceOp) -> Kernel {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => level.compiled::<T::Reduce<Sum>>(),
        ReduceOp::Product => level.compiled::<T::Reduce<Product>>(),
        ReduceOp::Min => level.compiled::<Reduce<T, Smaller>>(),
        ReduceOp::Max => level.compiled::<Reduce<T, Larger>>(),
    }
}

/// The same for two arrays that both become the result.
pub fn joint(dtype: DType, op: ReduceOp) -> Joint {
    for_dtype!(dtype, joint_reduction(Level::best(), op))
}

fn joint_reduction<T: Arithmetic>(level: Level, op: ReduceOp) -> Joint {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => level.compiled::<T::Join<Sum>>(),
        ReduceOp::Product => level.compiled::<T::Join<Product>>(),
        ReduceOp::Min => level.compiled::<Join<T, Smaller>>(),
        ReduceOp::Max => level.compiled::<Join<T, Larger>>(),
    }
}

/// Divides every element by the number of ranks: what makes a mean of a sum.
pub(crate) fn divide(dtype: DType, elements: &mut [u8], ranks: usize) {
    for_dtype!(dtype, division(Level::best()))(elements, ranks);
}

fn division<T: Number>(level: Level) -> fn(&mut [u8], usize) {
    level.compiled::<Divide<T>>()
}

#[cfg(test)]
mod tests;
