//! What a rank asks for when it calls a collective, and what it is told.

use std::fmt;
use std::ops::Range;

use unisono_collectives::{Chunks, Operation, Rank, named, partition};

use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::method::Method;

mod why;

pub use why::Why;

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

    /// The elements that are a result on a rank when the call is done.
    pub(crate) fn result_on(&self, rank: Rank, ranks: usize) -> Range<usize> {
        match self.operation {
            Operation::ReduceScatter => partition::elements(self.count, ranks, Chunks::one(rank)),
            Operation::Reduce { root } if root != rank => 0..0,
            _ => 0..self.count,
        }
    }

    /// Where in the buffer a rank's own part is.
    #[cfg(feature = "mpi")]
    pub(crate) fn own_bytes(&self, rank: Rank, ranks: usize) -> Range<usize> {
        self.bytes_of(partition::elements(self.count, ranks, Chunks::one(rank)))
    }

    /// Where in the buffer some of its elements are.
    pub(crate) fn bytes_of(&self, elements: Range<usize>) -> Range<usize> {
        scaled(elements, self.dtype.size_bytes())
    }

    /// The size of the buffer.
    pub fn size_bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

/// Kinds of memory that an array can be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// Any slice.
    #[default]
    Slice,
    /// What [`Communicator::alloc`](crate::Communicator::alloc) gives.
    Registered,
    /// The memory of each rank's GPU. Times are those until the GPU is done.
    Device,
}

impl Memory {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Slice, Self::Registered, Self::Device];
    /// Those that the host reaches.
    pub(crate) const HOST: [Self; 2] = [Self::Slice, Self::Registered];

    /// The name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Registered => "registered",
            Self::Device => "device",
        }
    }
}

named!(Memory, "kind of memory");

/// A range of elements of so many bytes as a range of bytes.
pub(crate) fn scaled(elements: Range<usize>, size_bytes: usize) -> Range<usize> {
    elements.start * size_bytes..elements.end * size_bytes
}

/// What carried out a call: on the host and on GPUs, by an algorithm of ours or by a vendor.
///
/// ```
/// use unisono::{Algorithm, Method, ReduceOp, Why};
///
/// unisono::threads(2, |mut comm| {
///     let ran = comm.call().algorithm(Algorithm::Ring).all_reduce(&mut [1.0_f32; 9], ReduceOp::Sum).unwrap();
///     assert_eq!((ran.method, ran.why, ran.link), (Method::Algorithm(Algorithm::Ring), Why::AskedFor, "threads"));
///     assert_eq!(ran.to_string(), "ring over threads: it was asked for");
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// The algorithm, the vendor, or both.
    pub method: Method,
    /// Why it was chosen.
    pub why: Why,
    /// What moved the bytes from rank to rank: what [`Communicator::transport`](crate::Communicator::transport) says, `mpi` where
    /// MPI's own collectives did, and `nccl` where NCCL's did; `nccl+mpi` if NCCL did inside of nodes and MPI between them.
    pub link: &'static str,
}

/// `ring over shm: predicted fastest: 12.1 us, then tree 13.5 us`.
impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, why, link } = self;
        write!(f, "{method} over {link}: {why}")
    }
}
