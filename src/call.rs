//! What a rank asks for when it calls a collective, and what it is told.

use unisono_collectives::Operation;

use crate::dtype::DType;
use crate::reduce::ReduceOp;
use crate::select::Why;

/// A collective call: all ranks of a world make the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub operation: Operation,
    /// The reduction, where the operation reduces.
    pub op: Option<ReduceOp>,
    /// The type of the elements.
    pub dtype: DType,
    /// How many elements the buffer has.
    pub count: usize,
}

impl Call {
    /// An all-reduce of `count` elements.
    pub fn all_reduce(dtype: DType, op: ReduceOp, count: usize) -> Self {
        Self { operation: Operation::AllReduce, op: Some(op), dtype, count }
    }

    /// The size of the buffer.
    pub fn size_bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

/// What carried out a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// The name of the algorithm, or of the vendor.
    pub algorithm: &'static str,
    /// Why it was chosen.
    pub why: Why,
}
