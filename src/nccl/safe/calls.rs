//! The checks and the progress of every call, and the end of a communicator.

use std::ffi::c_int;
use std::sync::{Arc, mpsc};
use std::thread::{self, Builder};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use unisono_collectives::Rank;

use super::Communicator;
use super::checks::{count, data_type};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::gpu::{Span, wait_for};
use crate::nccl::result::{Elements, On, Progress};
use crate::nccl::sys::{self, Functions};
use crate::transport::Deadlines;

/// The longest wait for NCCL to finalise or abort a communicator.
const FAREWELL: Duration = Duration::from_secs(5);

impl Communicator {
    /// Enqueues a call on all elements of a buffer, after checking it, and returns once NCCL has enqueued it.
    pub(super) fn enqueue(
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

    pub(super) fn progress(&self) -> Result<Progress> {
        self.check_alive("ncclCommGetAsyncError")?;
        // SAFETY: the communicator was created and neither finalised nor aborted (it is not null), and `&self` of a type
        // that is not `Sync` is its only user; its context is bound.
        unsafe { self.library.functions().progress(self.comm) }
    }

    /// Waits until NCCL has completed the last call.
    pub(super) fn settle(&mut self, call: &'static str) -> Result<()> {
        let (deadlines, status) = &self.patience;
        let is_done = || self.progress().map(|progress| progress == Progress::Done);
        wait_for(is_done, call, (deadlines, status), || Ok(()))?;
        self.settled = true;
        Ok(())
    }

    pub(super) fn or_abort(&mut self, result: Result<()>) -> Result<()> {
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
    pub(super) fn check_identity(&self) -> Result<()> {
        // SAFETY: the communicator is ready, was not ended, and only this value uses it; its context is bound.
        let found = unsafe { self.library.functions().describe(self.comm) }?;
        let expected = [self.ranks, self.rank, self.device.ordinal()].map(number);
        if found == expected {
            return Ok(());
        }
        let text = format!("ranks, rank and device are {found:?}, but should be {expected:?}");
        Err(Error::Nccl { call: "ncclCommInitRankConfig", code: sys::ncclInternalError, text })
    }

    pub(super) fn root(&self, root: Rank) -> c_int {
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

pub(super) fn bind(device: &CudaContext) -> Result<()> {
    device.bind_to_thread().map_err(|cause| Error::Cuda { what: "binding a GPU to the thread", cause })
}

/// Converts a rank or a number of ranks to NCCL's type.
pub(super) fn number(count: usize) -> c_int {
    c_int::try_from(count)
        .unwrap_or_else(|_| panic!("{count} ranks, but NCCL supports at most {}", c_int::MAX))
}
