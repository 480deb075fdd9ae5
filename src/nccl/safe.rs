//! Communicators whose calls are sound: the interface of NCCL for the rest of the crate.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::thread::{self, Builder};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::{Operation, Rank};

use super::library::Library;
use super::result::{Elements, On, Progress, name};
use super::sys::{self, Functions};
use super::unique_id::UniqueId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::{Span, wait_for};
use crate::kernels::ReduceOp;
use crate::status::StatusBoard;
use crate::transport::Deadlines;

mod checks;

use checks::{count, data_type, equal_parts, reduction};

/// The longest wait for NCCL to finalise or abort a communicator.
const FAREWELL: Duration = Duration::from_secs(5);

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
        self.is_done()
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
    /// For a reduction that NCCL does not have; if the buffer is not whole, aligned elements, or the buffer or the stream belongs to another
    /// context than the communicator; if the root is not a rank; if there is not one part for each rank, in order and without gaps, that together
    /// are the buffer.
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

    /// Enqueues a call on all elements of a buffer, after checking it, and returns once NCCL has enqueued it.
    fn enqueue(
        &mut self,
        call: &'static str,
        buffer: &mut Span<'_>,
        dtype: DType,
        stream: &CudaStream,
        make: impl FnOnce(&Functions, Elements, On) -> Result<Progress>,
    ) -> Result<()> {
        let count = count(buffer.size_bytes(), dtype);
        for (what, context) in [("buffer", buffer.context()), ("stream", stream.context())] {
            let (theirs, ours) = (context.ordinal(), self.device.ordinal());
            assert!(
                *context == self.device,
                "the {what} is on GPU {theirs}, and the communicator on GPU {ours}"
            );
        }
        if count == 0 {
            return Ok(());
        }
        bind(&self.device)?;
        if !self.settled {
            let settled = self.settle(call);
            self.or_abort(settled)?;
        }
        self.check_alive(call)?;
        let address = buffer.address();
        assert!(address.is_multiple_of(dtype.size_bytes() as u64), "elements of {dtype} at {address:#x}");
        let elements = Elements { start: address as *mut u8, count, dtype: data_type(dtype) };
        let on = On { comm: self.comm, stream: stream.cu_stream().cast() };
        self.settled = false;
        let enqueued = match make(self.library.functions(), elements, on) {
            // The caller's next work on the stream must come after the call.
            Ok(Progress::Begun) => self.settle(call),
            made => made.map(drop),
        };
        self.settled = enqueued.is_ok();
        self.or_abort(enqueued)
    }

    fn is_done(&self) -> Result<bool> {
        self.check_alive("ncclCommGetAsyncError")?;
        // SAFETY: the communicator was created and neither finalised nor aborted (it is not null), and `&self` of a type
        // that is not `Sync` is its only user; its context is bound.
        let progress = unsafe { self.library.functions().progress(self.comm) }?;
        Ok(progress == Progress::Done)
    }

    /// Waits until NCCL has completed the last call.
    fn settle(&mut self, call: &'static str) -> Result<()> {
        let (deadlines, status) = &self.patience;
        wait_for(|| self.is_done(), call, (deadlines, status), || Ok(()))?;
        self.settled = true;
        Ok(())
    }

    fn or_abort(&mut self, result: Result<()>) -> Result<()> {
        if result.is_err() {
            self.abort();
        }
        result
    }

    fn check_alive(&self, call: &'static str) -> Result<()> {
        if self.comm.is_null() {
            let text = "the communicator was aborted, after an error or by request".to_owned();
            return Err(Error::Nccl { call, code: sys::ncclInvalidUsage, text });
        }
        Ok(())
    }

    /// Checks that NCCL has the same ranks, rank and device: it uses the current device, which is not an argument.
    fn check_identity(&self) -> Result<()> {
        // SAFETY: the communicator is ready, was not ended, and only this value uses it; its context is bound.
        let found = unsafe { self.library.functions().describe(self.comm) }?;
        let expected = [self.ranks, self.rank, self.device.ordinal()].map(number);
        if found == expected {
            return Ok(());
        }
        let text = format!("ranks, rank and device are {found:?}, but should be {expected:?}");
        Err(Error::Nccl { call: "ncclCommInitRankConfig", code: sys::ncclInternalError, text })
    }

    fn root(&self, root: Rank) -> c_int {
        assert!(root < self.ranks, "the root is rank {root} of {} ranks", self.ranks);
        number(root)
    }

    /// Aborts the communicator, with all calls in flight. The other ranks are not notified. Later calls fail.
    ///
    /// NCCL waits for its own work on the GPU, which may wait on its stream for another communicator's. So another thread waits for NCCL, and
    /// this one only for a short time.
    pub(crate) fn abort(&mut self) {
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        if comm.is_null() {
            return;
        }
        let (library, device, rank) = (self.library, Arc::clone(&self.device), self.rank);
        let (comm, (ended, end)) = (comm.expose_provenance(), mpsc::channel());
        let abort = move || {
            let comm = std::ptr::with_exposed_provenance_mut(comm);
            // SAFETY: the communicator was created, was taken out of its owner, which was its only user, and is not used again.
            let aborted = bind(&device).and(unsafe { library.functions().abort(comm) });
            if let Err(error) = aborted {
                tracing::warn!(rank, %error, "NCCL could not be aborted");
            }
            // After the deadline the receiver is gone.
            let _ = ended.send(());
        };
        let begun = Builder::new().name("unisono-abort".to_owned()).spawn(abort);
        if begun.is_err() || end.recv_timeout(FAREWELL).is_err() {
            tracing::warn!(
                rank,
                "NCCL does not abort: its calls may wait on their streams for another communicator's; abort that too"
            );
        }
    }

    /// Finalises and destroys the communicator, together with the other ranks.
    fn end(&mut self) -> Result<()> {
        bind(&self.device)?;
        let (deadlines, status) = &self.patience;
        // A call in flight ends only after all ranks have made it.
        let have_all_called = || Ok(status.first_behind().is_none_or(|other| status.has_left(other)));
        wait_for(have_all_called, "ncclCommFinalize", (deadlines, status), || Ok(()))?;
        self.set_deadlines(Deadlines { timeout: FAREWELL, quiet: FAREWELL });
        if !self.settled {
            self.settle("ncclCommFinalize")?;
        }
        let nccl = self.library.functions();
        // SAFETY: the communicator was created and not ended, only this value uses it, and its context is bound.
        if unsafe { nccl.finalize(self.comm) }? == Progress::Begun {
            self.settle("ncclCommFinalize")?;
        }
        let comm = std::mem::replace(&mut self.comm, std::ptr::null_mut());
        // SAFETY: it is finalised, and was taken out of `self`, so it is not used again.
        unsafe { nccl.destroy(comm) }.map(|_| ())
    }
}

/// Finalises the communicator; aborts it if that fails, or if this thread panics.
impl Drop for Communicator {
    fn drop(&mut self) {
        if self.comm.is_null() {
            return;
        }
        if !thread::panicking()
            && let Err(error) = self.end()
        {
            tracing::warn!(rank = self.rank, %error, "NCCL could not be finalised, and is aborted");
        }
        self.abort();
    }
}

fn bind(device: &CudaContext) -> Result<()> {
    device.bind_to_thread().map_err(|cause| Error::Cuda { what: "binding a GPU to the thread", cause })
}

/// Converts a rank or a number of ranks to NCCL's type.
fn number(count: usize) -> c_int {
    c_int::try_from(count)
        .unwrap_or_else(|_| panic!("{count} ranks, but NCCL supports at most {}", c_int::MAX))
}
