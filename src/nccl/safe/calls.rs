//! The checks and the progress of every call, and the end of a communicator.

use std::ffi::c_int;
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

/// The longest wait for the other ranks when a communicator is dropped.
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
        let made = make(self.library.functions(), elements, on).and_then(|progress| match progress {
            Progress::Done => {
                self.settled = true;
                Ok(())
            }
            // The caller's next work on the stream must come after this call, so NCCL must have enqueued it before this
            // returns.
            Progress::Begun => self.settle(call),
        });
        self.or_abort(made)
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

    /// Finalises and destroys the communicator, together with the other ranks.
    fn end(&mut self) -> Result<()> {
        bind(&self.device)?;
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

/// Finalises the communicator, with a short deadline for the other ranks; aborts it after that, or if this thread panics.
impl Drop for Communicator {
    fn drop(&mut self) {
        if self.comm.is_null() {
            return;
        }
        if !std::thread::panicking()
            && let Err(error) = self.end()
        {
            tracing::warn!(rank = self.rank, %error, "NCCL could not be finalised, and is aborted");
        }
        self.abort();
    }
}

/// Makes the context current on this thread.
pub(super) fn bind(device: &CudaContext) -> Result<()> {
    device.bind_to_thread().map_err(|cause| Error::Cuda { what: "binding a GPU to the thread", cause })
}

/// Converts a rank or a number of ranks to NCCL's type.
pub(super) fn number(count: usize) -> c_int {
    c_int::try_from(count)
        .unwrap_or_else(|_| panic!("{count} ranks, but NCCL supports at most {}", c_int::MAX))
}
