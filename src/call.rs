//! What a rank asks for when it calls a collective, and what it is told.

#[cfg(feature = "mpi")]
use std::ops::Range;

use unisono_collectives::Operation;
#[cfg(feature = "mpi")]
use unisono_collectives::{Chunks, Rank, partition};

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

    /// A reduction of nothing: no rank is done before all have begun.
    pub(crate) fn barrier() -> Self {
        Self::all_reduce(DType::U8, ReduceOp::Max, 0)
    }

    /// Where in the buffer a rank's own part is.
    #[cfg(feature = "mpi")]
    pub(crate) fn own_bytes(&self, rank: Rank, ranks: usize) -> Range<usize> {
        let own = partition::elements(self.count, ranks, Chunks::one(rank));
        let size_bytes = self.dtype.size_bytes();
        own.start * size_bytes..own.end * size_bytes
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
