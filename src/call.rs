//! The description of a collective call and of its execution.

use std::fmt;
use std::ops::Range;

use unisono_collectives::partition::Partition;
use unisono_collectives::{Algorithm, Chunks, Operation, Rank, named};

use crate::dtype::DType;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::size;

/// A collective call, the same on all ranks of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// The operation.
    pub operation: Operation,
    /// The reduction, if the operation reduces.
    pub op: Option<ReduceOp>,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of elements in the buffer.
    pub count: usize,
    /// The number of values of `dtype` in an element: 1, unless [`CallBuilder::element_bytes`](crate::CallBuilder::element_bytes) sets another.
    pub(crate) width: u16,
}

impl Call {
    /// Returns a call on `count` elements, with a reduction if the operation reduces.
    pub fn new(operation: Operation, op: Option<ReduceOp>, dtype: DType, count: usize) -> Self {
        Self { operation, op, dtype, count, width: 1 }
    }

    #[inline]
    pub(crate) fn in_elements_of(self, width: u16) -> Self {
        // A division would take a considerable part of the time of a short call.
        if width == 1 {
            return self;
        }
        let Self { op, dtype, count, .. } = self;
        let is_supported = matches!(op, None | Some(ReduceOp::Custom(_)));
        assert!(is_supported, "elements of {width} bytes can only be moved, or reduced by `custom_bytes`");
        assert!(dtype == DType::U8, "elements of {width} bytes must be passed as u8, got {dtype}");
        assert!(count.is_multiple_of(width.into()), "{count} bytes are not whole elements of {width} bytes");
        Self { count: count / usize::from(width), width, ..self }
    }

    /// Returns an all-reduce of `count` elements.
    pub fn all_reduce(dtype: DType, op: ReduceOp, count: usize) -> Self {
        Self::new(Operation::AllReduce, Some(op), dtype, count)
    }

    /// Returns a barrier: an all-reduce of no elements, which completes once all ranks have called it.
    pub fn barrier() -> Self {
        Self::all_reduce(DType::U8, ReduceOp::Max, 0)
    }

    /// Returns the parts of the ranks: `given`, or parts whose sizes differ by at most one element.
    pub(crate) fn parts(&self, ranks: usize, given: Option<&Partition>) -> Partition {
        given.map_or_else(|| Partition::fair(self.count, ranks), Partition::clone)
    }

    /// Returns the elements that hold results on a rank after the call, given the parts of the ranks.
    pub(crate) fn result_on(&self, rank: Rank, parts: &Partition) -> Range<usize> {
        match self.operation {
            Operation::ReduceScatter => parts.elements(Chunks::one(rank)),
            Operation::Reduce { root } if root != rank => 0..0,
            Operation::ExclusiveScan if rank == 0 => 0..0,
            _ => 0..self.count,
        }
    }

    pub(crate) fn bytes_of(&self, elements: Range<usize>) -> Range<usize> {
        scaled(elements, self.element_bytes())
    }

    /// Returns the type of the elements, for error texts.
    pub(crate) fn elements(&self) -> String {
        match self.width {
            1 => self.dtype.name().to_owned(),
            width => format!("{width} bytes"),
        }
    }

    pub(crate) fn element_bytes(&self) -> usize {
        usize::from(self.width) * self.dtype.size_bytes()
    }

    /// Returns the size of the buffer in bytes.
    ///
    /// # Panics
    /// If it exceeds the address space.
    pub fn size_bytes(&self) -> usize {
        let size_bytes = self.count.checked_mul(self.element_bytes());
        size_bytes.unwrap_or_else(|| panic!("{} {} exceed the address space", self.count, self.elements()))
    }
}

named! {
    /// The kind of memory that holds an array.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Memory: "kind of memory" {
        /// Any slice in host memory.
        #[default]
        Slice = "slice",
        /// Memory from [`Communicator::alloc`](crate::Communicator::alloc).
        Registered = "registered",
        /// GPU memory. Times then include the work on the GPU.
        Device = "device",
    }
}

impl Memory {
    pub(crate) const HOST: [Self; 2] = [Self::Slice, Self::Registered];
}

pub(crate) fn scaled(elements: Range<usize>, size_bytes: usize) -> Range<usize> {
    elements.start * size_bytes..elements.end * size_bytes
}

/// The execution of a call, on the host or on GPUs.
///
/// ```
/// use unisono::{Algorithm, Method, ReduceOp, Why};
///
/// unisono::threads(2, |mut comm| {
///     let ran = comm.call().algorithm(Algorithm::Ring).all_reduce(&mut [1.0_f32; 9], ReduceOp::Sum).unwrap();
///     assert_eq!((ran.method, ran.why, ran.link), (Method::Algorithm(Algorithm::Ring), Why::AskedFor, "threads"));
///     assert_eq!(ran.to_string(), "ring over threads: requested");
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// The algorithm, the vendor, or both.
    pub method: Method,
    /// The reason why it was chosen.
    pub why: Why,
    /// The link between ranks: the name from [`Communicator::transport`](crate::Communicator::transport), `mpi` for MPI's own
    /// collectives, `nccl` for NCCL's, or `nccl+mpi` for NCCL inside nodes and MPI between them.
    pub link: &'static str,
}

/// `ring over shm: predicted fastest: 12.1 us, then tree 13.5 us`.
impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, why, link } = self;
        write!(f, "{method} over {link}: {why}")
    }
}

/// The reason for the choice of a call's method. `Display` gives a text for users.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// The caller chose the method by name.
    AskedFor,
    /// The caller has a rule for arrays of this size.
    Rule {
        /// The smallest size of the rule.
        from_bytes: usize,
        /// The end of the range, exclusive; `None` if it is open.
        to_bytes: Option<usize>,
    },
    /// The cost model predicts that it is fastest.
    Predicted {
        /// The predicted time.
        time_us: f64,
        /// The next best algorithm and its predicted time.
        next: Option<(Algorithm, f64)>,
    },
    /// No other algorithm offers the operation.
    OnlyOne,
    /// A default for worlds too large to run the cost model before a call.
    Default(&'static str),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::AskedFor => write!(f, "requested"),
            Self::Rule { from_bytes, to_bytes } => {
                let to = to_bytes.map(size::text).unwrap_or_default();
                write!(f, "a rule for {}-{to}", size::text(from_bytes))
            }
            Self::Predicted { time_us, next: None } => write!(f, "predicted: {}", microseconds(time_us)),
            Self::Predicted { time_us, next: Some((next, next_us)) } => {
                let (time_us, next_us) = (microseconds(time_us), microseconds(next_us));
                write!(f, "predicted fastest: {time_us}, then {next} {next_us}")
            }
            Self::OnlyOne => write!(f, "no other offers it"),
            Self::Default(reason) => write!(f, "{reason}"),
        }
    }
}

/// Formats a time with at least two digits.
fn microseconds(time_us: f64) -> String {
    let digits = if time_us < 10.0 { 2 } else { usize::from(time_us < 1000.0) };
    format!("{time_us:.digits$} us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_texts() {
        let text = |why: Why| why.to_string();
        assert_eq!(text(Why::Rule { from_bytes: 8 << 10, to_bytes: Some(1 << 20) }), "a rule for 8K-1M");
        assert_eq!(text(Why::Rule { from_bytes: 0, to_bytes: None }), "a rule for 0-");
        let next = Some((Algorithm::Ring, 1234.56));
        assert_eq!(
            text(Why::Predicted { time_us: 12.1, next }),
            "predicted fastest: 12.1 us, then ring 1235 us"
        );
        assert_eq!(text(Why::Predicted { time_us: 0.5, next: None }), "predicted: 0.50 us");
    }
}
