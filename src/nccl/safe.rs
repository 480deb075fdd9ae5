//! Communicators whose calls are sound: the interface of NCCL for the rest of the crate.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::{Operation, Rank};

use super::library::Library;
use super::result::{Elements, Progress, name};
use super::sys;
use super::unique_id::UniqueId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::Span;
use crate::kernels::ReduceOp;
use crate::status::StatusBoard;
use crate::transport::Deadlines;

mod calls;
mod checks;

use calls::{bind, number};
use checks::{count, equal_parts, reduction};

/// One rank's handle of an NCCL communicator, in which each rank has a GPU.
///
/// Collectives work in place, and are enqueued on a stream of the caller: when a call returns, NCCL has enqueued it, and the buffer
/// is in use until the stream has completed it. All ranks must make the same calls in the same order, which NCCL does not check.
///
/// After an error the communicator is aborted. The other ranks' calls do not end by themselves, so each rank must be notified, and
/// abort too.
///
/// Dropping it waits until the other ranks have made the same calls, or one has left, and then finalises it together with them. A rank that
/// waits more than five seconds for that aborts, with all calls in flight. So does a rank that is informed of a failure.
///
/// # Results
/// Integers agree with Unisono's algorithms. Floats are added in NCCL's order. NCCL computes a mean as a sum of products with 1 /
/// ranks, rounded to the element type, and Unisono as the quotient of a sum, so the last bits differ. The minimum or maximum of a
/// number and NaN is unspecified.
#[derive(Debug)]
pub(crate) struct Communicator {
    library: &'static Library,
    /// Null once aborted.
    comm: sys::ncclComm_t,
    device: Arc<CudaContext>,
    ranks: usize,
    rank: Rank,
    /// The deadlines for NCCL to enqueue a call, and the board with failures of other ranks.
    patience: (Deadlines, StatusBoard),
    /// Whether NCCL is known to have completed the last call.
    settled: bool,
}

// SAFETY: NCCL allows any thread to use a communicator, one at a time, with its context bound, and every call here binds it.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Starts to create a communicator, and returns at once; [`Communicator::wait_until_ready`] waits for the other ranks.
    ///
    /// `patience` has the deadlines of this and later calls, and the board where other ranks report failures. The first calls take
    /// longest: NCCL connects ranks on first use.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) if the context cannot be used; [`Error::Nccl`](crate::Error::Nccl) if NCCL
    /// refuses.
    ///
    /// # Panics
    /// If `rank` is not less than `ranks`.
    pub(crate) fn begin(
        library: &'static Library,
        ranks: usize,
        rank: Rank,
        id: &UniqueId,
        device: &Arc<CudaContext>,
        patience: (Deadlines, StatusBoard),
    ) -> Result<Self> {
        assert!(rank < ranks, "rank {rank} of {ranks} ranks");
        bind(device)?;
        let comm = library.functions().begin(number(ranks), number(rank), id.raw())?;
        let device = Arc::clone(device);
        Ok(Self { library, comm, device, ranks, rank, patience, settled: false })
    }

    /// Returns whether NCCL has completed the last call: the creation of the communicator, or enqueuing a collective.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if a call has failed since, here or on another rank. The communicator must then
    /// be aborted.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        bind(&self.device)?;
        self.progress().map(|progress| progress == Progress::Done)
    }

    /// Waits until all ranks have created the communicator.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if it fails, and [`Error::Overdue`](crate::Error::Overdue) if it takes too long; the
    /// communicator is then aborted.
    pub(crate) fn wait_until_ready(&mut self) -> Result<()> {
        bind(&self.device)?;
        let ready = self.settle("ncclCommInitRankConfig").and_then(|()| self.check_identity());
        self.or_abort(ready)
    }

    /// Carries out a collective: all-reduce, reduce, broadcast, reduce-scatter or all-gather.
    ///
    /// `parts` are ranges of elements, one for each rank, of a reduce-scatter or an all-gather, which work in place: the rest of the
    /// buffer of a reduce-scatter is then undefined. NCCL supports only equal lengths; parts of different lengths use a reduction or a
    /// broadcast each, in one group.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for another collective. Otherwise [`Error::Cuda`](crate::Error::Cuda) or
    /// [`Error::Nccl`](crate::Error::Nccl), and [`Error::Overdue`](crate::Error::Overdue) if NCCL takes too long to enqueue; the communicator
    /// is then aborted.
    ///
    /// # Panics
    /// For a reduction that NCCL does not have; if the buffer is not whole, aligned elements, or the buffer or the stream belongs to another context than the communicator; if
    /// the root is not a rank; if there is not one part for each rank, in order and without gaps, that together are the buffer.
    pub(crate) fn run(
        &mut self,
        buffer: &mut Span<'_>,
        (operation, op, dtype): (Operation, Option<ReduceOp>, DType),
        parts: &[Range<usize>],
        stream: &CudaStream,
    ) -> Result<()> {
        let unsupported = || Error::Unsupported(format!("NCCL has no {operation}; choose another algorithm"));
        let name = name(operation).ok_or_else(unsupported)?;
        let op = op.map_or(sys::ncclSum, reduction);
        let root = operation.root().map_or(0, |root| self.root(root));
        let count = count(buffer.size_bytes(), dtype);
        let (own, equal) = match operation {
            Operation::ReduceScatter | Operation::AllGather => {
                (parts[self.rank].clone(), equal_parts(parts, self.ranks, count))
            }
            _ => (0..count, true),
        };
        self.enqueue(name, buffer, dtype, stream, |nccl, whole, on| {
            let part = |range: &Range<usize>| {
                let start = whole.start.wrapping_add(range.start * dtype.size_bytes());
                Elements { start, count: range.len(), ..whole }
            };
            if equal {
                // SAFETY: `enqueue` has checked the communicator, the stream and the elements, and waits until the call is enqueued;
                // the part is within the elements.
                return unsafe { nccl.collective(operation, (whole, part(&own)), (op, root), on) };
            }
            let each = match operation {
                Operation::ReduceScatter => Operation::Reduce { root: 0 },
                _ => Operation::Broadcast { root: 0 },
            };
            let calls = || {
                let mut of_all = parts.iter().zip(0..).filter(|(range, _)| !range.is_empty());
                of_all.try_for_each(|(range, root)| {
                    // SAFETY: as above.
                    unsafe { nccl.collective(each, (part(range), part(range)), (op, root), on) }.map(drop)
                })
            };
            // SAFETY: any thread may start a group. The calls in it have their own proofs.
            unsafe { nccl.group(calls) }
        })
    }

    pub(crate) fn set_deadlines(&mut self, deadlines: Deadlines) {
        self.patience.0 = deadlines;
    }
}
