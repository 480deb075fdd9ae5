//! Communicators whose calls are sound: of NCCL, what the rest of the crate sees.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::Rank;

use super::library::Library;
use super::result::{Elements, Progress};
use super::sys::{self, Functions};
use super::unique_id::UniqueId;
use crate::dtype::DType;
use crate::error::Result;
use crate::gpu::Span;
use crate::kernels::ReduceOp;

mod calls;
mod checks;
mod direct;
mod poll;

use calls::{bind, number};
use checks::{count, equal_parts, reduction};

/// One rank's end of a communicator of NCCL's: ranks that each have a GPU.
///
/// Collectives work in place, and are enqueued on a stream of the caller's: when a call returns, NCCL has enqueued its
/// part, and the buffer is in use until the stream comes to its end. All ranks call the same collectives in the same
/// order. NCCL does not see it if they do not.
///
/// After an error the communicator is aborted: the other ranks' calls do not end by themselves, so each must hear of
/// it and abort too.
///
/// Drop it when the streams have done what is enqueued: the ranks end together, and who waits for another more than five
/// seconds then gives up, and with it what is still in flight.
///
/// # The results
/// Integers agree with ours. Floats are added in NCCL's order, and a mean is a sum of products with 1 / ranks, which is
/// rounded to the element type, where ours is a quotient of a sum: the last bits differ. A minimum or maximum of a
/// number and NaN is NCCL's affair.
#[derive(Debug)]
pub(crate) struct Communicator {
    library: &'static Library,
    /// Null once it is aborted.
    comm: sys::ncclComm_t,
    device: Arc<CudaContext>,
    ranks: usize,
    rank: Rank,
    timeout: Duration,
    /// Whether it is known that NCCL is not at work on a call.
    settled: bool,
}

// SAFETY: any thread may call NCCL for a communicator, one at a time, with its context bound, as every call here does.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Begins to make a communicator, and returns at once; [`Communicator::wait_until_ready`] waits for the others.
    ///
    /// `timeout` is how long a later call may wait until NCCL has enqueued it. The first calls take longest: NCCL
    /// connects ranks when they first need it.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) if the context cannot be used; [`Error::Nccl`](crate::Error::Nccl) if NCCL refuses.
    ///
    /// # Panics
    /// If there is no such rank.
    pub(crate) fn begin(
        library: &'static Library,
        ranks: usize,
        rank: Rank,
        id: &UniqueId,
        device: &Arc<CudaContext>,
        timeout: Duration,
    ) -> Result<Self> {
        assert!(rank < ranks, "there is no rank {rank} among {ranks}");
        bind(device)?;
        let comm = library.functions().begin(number(ranks), number(rank), id.raw())?;
        let device = Arc::clone(device);
        Ok(Self { library, comm, device, ranks, rank, timeout, settled: false })
    }

    /// Whether NCCL is done with what was called last: with making the communicator, or with enqueuing.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if it failed, also by another rank's fault, at any time since. The communicator is to be aborted then.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        bind(&self.device)?;
        self.progress().map(|progress| progress == Progress::Done)
    }

    /// Waits until all ranks have made the communicator.
    ///
    /// # Errors
    /// [`Error::Nccl`](crate::Error::Nccl) if it fails, or if it takes longer than `timeout`; the communicator is then aborted.
    pub(crate) fn wait_until_ready(&mut self, timeout: Duration) -> Result<()> {
        bind(&self.device)?;
        let ready = self.settle("ncclCommInitRankConfig", timeout).and_then(|()| self.check_identity());
        self.or_abort(ready)
    }

    /// Reduces the buffer of all ranks, element by element; all get the result.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a mean of integers before NCCL 2.24, which divides negative sums as if they had no sign. Otherwise
    /// [`Error::Cuda`](crate::Error::Cuda) or [`Error::Nccl`](crate::Error::Nccl), also if NCCL takes too long to enqueue; the communicator is then aborted.
    ///
    /// # Panics
    /// If the buffer is not whole, aligned elements, or it or the stream belong to another context than the communicator.
    pub(crate) fn all_reduce(
        &mut self,
        buffer: &mut Span<'_>,
        dtype: DType,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<()> {
        let op = reduction(self.library.version(), self.ranks, dtype, op)?;
        // SAFETY: `enqueue` vouches for the communicator, the stream and the elements.
        self.enqueue("ncclAllReduce", buffer, dtype, stream, |nccl, elements, on| unsafe {
            nccl.all_reduce(elements, op, on)
        })
    }

    /// Reduces the buffer of all ranks, element by element; the root gets the result, and the others' buffers stay.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// As [`Communicator::all_reduce`], and if there is no such root.
    pub(crate) fn reduce(
        &mut self,
        buffer: &mut Span<'_>,
        dtype: DType,
        op: ReduceOp,
        root: Rank,
        stream: &CudaStream,
    ) -> Result<()> {
        let (op, root) = (reduction(self.library.version(), self.ranks, dtype, op)?, self.root(root));
        // SAFETY: as for `all_reduce`.
        self.enqueue("ncclReduce", buffer, dtype, stream, |nccl, elements, on| unsafe {
            nccl.reduce(elements, op, root, on)
        })
    }

    /// Gives the root's buffer to all ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// As [`Communicator::reduce`].
    pub(crate) fn broadcast(
        &mut self,
        buffer: &mut Span<'_>,
        dtype: DType,
        root: Rank,
        stream: &CudaStream,
    ) -> Result<()> {
        let root = self.root(root);
        // SAFETY: as for `all_reduce`.
        self.enqueue("ncclBroadcast", buffer, dtype, stream, |nccl, elements, on| unsafe {
            nccl.broadcast(elements, root, on)
        })
    }

    /// Reduces the buffer of all ranks, element by element; each rank gets its part of the result, in its place. What
    /// the rest of the buffer holds then is undefined.
    ///
    /// `parts` are ranges of elements, one for each rank. NCCL knows only parts of one length: others take a reduction
    /// each, in one group.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// As [`Communicator::all_reduce`], and if the parts are not one for each rank, one after the other, and together
    /// the buffer.
    pub(crate) fn reduce_scatter(
        &mut self,
        buffer: &mut Span<'_>,
        parts: &[Range<usize>],
        dtype: DType,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<()> {
        let op = reduction(self.library.version(), self.ranks, dtype, op)?;
        let equal = equal_parts(parts, self.ranks, count(buffer.size_bytes(), dtype));
        let own = parts[self.rank].clone();
        self.enqueue("ncclReduceScatter", buffer, dtype, stream, |nccl, whole, on| {
            if equal {
                // SAFETY: as for `all_reduce`; the parts are inside of the elements.
                return unsafe { nccl.reduce_scatter(whole.start, part(whole, dtype, &own), op, on) };
            }
            each_part(nccl, parts, |range, root| {
                // SAFETY: as for `all_reduce`; the parts are inside of the elements.
                unsafe { nccl.reduce(part(whole, dtype, range), op, root, on) }
            })
        })
    }

    /// Gives each rank's part of the buffer to all ranks, in its place.
    ///
    /// `parts` are as for [`Communicator::reduce_scatter`]; those of different lengths take a broadcast each, in one
    /// group.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// As [`Communicator::reduce_scatter`].
    pub(crate) fn all_gather(
        &mut self,
        buffer: &mut Span<'_>,
        parts: &[Range<usize>],
        dtype: DType,
        stream: &CudaStream,
    ) -> Result<()> {
        let equal = equal_parts(parts, self.ranks, count(buffer.size_bytes(), dtype));
        let own = parts[self.rank].clone();
        self.enqueue("ncclAllGather", buffer, dtype, stream, |nccl, whole, on| {
            if equal {
                // SAFETY: as for `all_reduce`; the parts are inside of the elements.
                return unsafe { nccl.all_gather(part(whole, dtype, &own), whole.start, on) };
            }
            each_part(nccl, parts, |range, root| {
                // SAFETY: as for `all_reduce`; the parts are inside of the elements.
                unsafe { nccl.broadcast(part(whole, dtype, range), root, on) }
            })
        })
    }

    /// Ends the communicator at once, with whatever it has in flight. The other ranks do not hear of it. Later calls
    /// fail.
    pub(crate) fn abort(&mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        if comm.is_null() {
            return;
        }
        if let Err(error) = bind(&self.device) {
            tracing::warn!(rank = self.rank, %error, "NCCL is aborted without its device");
        }
        // SAFETY: the communicator was begun, is this one's alone, and is not used again.
        if let Err(error) = unsafe { self.library.functions().abort(comm) } {
            tracing::warn!(rank = self.rank, %error, "NCCL did not abort cleanly");
        }
    }
}

/// The elements of one part.
fn part(whole: Elements, dtype: DType, range: &Range<usize>) -> Elements {
    let start = whole.start.wrapping_add(range.start * dtype.size_bytes());
    Elements { start, count: range.len(), ..whole }
}

/// Makes a call for each part that is not empty, and the rank that has it, in one group.
fn each_part(
    nccl: &Functions,
    parts: &[Range<usize>],
    call: impl Fn(&Range<usize>, c_int) -> Result<Progress>,
) -> Result<Progress> {
    let calls = || {
        let mut of_all = parts.iter().zip(0..).filter(|(range, _)| !range.is_empty());
        of_all.try_for_each(|(range, root)| call(range, root).map(|_| ()))
    };
    // SAFETY: a group may be begun by any thread; what is called in it vouches for itself.
    unsafe { nccl.group(calls) }
}
