//! A GPU: its context, events on its streams, and device memory borrowed for a call.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use crate::error::{Error, Result};
use crate::status::StatusBoard;
use crate::transport::{Deadlines, WaitFailure, Waiting};

#[allow(unsafe_code, reason = "memory of other libraries")]
mod array;
#[allow(unsafe_code, reason = "contexts of other libraries")]
mod contexts;
#[allow(unsafe_code, reason = "addresses of device memory")]
mod span;

pub use array::DeviceArray;
pub(crate) use contexts::{Current, keep_freed};
pub(crate) use span::{Span, lend, nothing, zeros};

/// `CU_STREAM_PER_THREAD`, the handle of another stream on each thread.
const PER_THREAD: usize = 2;

/// Converts an error of the CUDA driver; `what` names the failed operation.
pub(crate) fn cuda(what: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |cause| Error::Cuda { what, cause }
}

/// Creates the context of a local rank's GPU. The visible GPUs are assigned to local ranks round-robin.
///
/// # Errors
/// [`Error::Unsupported`] if there is no driver or no GPU, with the remedy.
pub(crate) fn context(local_rank: usize) -> Result<Arc<CudaContext>> {
    check_driver()?;
    let none = |why: String| {
        let hint = "nvidia-smi lists the GPUs, and CUDA_VISIBLE_DEVICES may hide some";
        Error::Unsupported(format!("no GPU can be used: {why}; {hint}"))
    };
    match CudaContext::device_count() {
        Err(error) => Err(none(error.to_string())),
        Ok(..=0) => Err(none("none was found".to_owned())),
        Ok(count) => contexts::primary(local_rank % count as usize).map_err(cuda("the GPU's context")),
    }
}

/// Records an event on a stream, to order other streams.
pub(crate) fn moment(stream: &CudaStream) -> Result<CudaEvent> {
    stream.record_event(None).map_err(cuda("order of streams"))
}

/// Runs `work` with a stream that is the same on all threads, since NCCL uses streams on its own threads. For a per-thread default stream,
/// that is `aside`, which is ordered after the work now on the stream and before later work.
pub(crate) fn on_any_thread<R>(
    stream: &Arc<CudaStream>,
    aside: &Arc<CudaStream>,
    work: impl FnOnce(&Arc<CudaStream>) -> Result<R>,
) -> Result<R> {
    if stream.cu_stream().addr() != PER_THREAD {
        return work(stream);
    }
    aside.join(stream).map_err(cuda("order of streams"))?;
    let done = work(aside);
    // Even if the work failed: a part of it may be queued.
    let ordered = stream.join(aside).map_err(cuda("order of streams"));
    done.and_then(|done| ordered.map(|()| done))
}

/// The number of polls without a pause: short operations of a GPU or NCCL take a few microseconds.
const SPINS: u32 = 200;

/// Polls until `is_over`, with the deadlines of a call. Calls `check` from time to time to detect errors.
///
/// # Errors
/// [`Error::Overdue`] after the deadline, [`Error::Aborted`] after the failure of another rank, and the errors of both functions.
pub(crate) fn wait_for(
    mut is_over: impl FnMut() -> Result<bool>,
    what: &'static str,
    (deadlines, status): (&Deadlines, &StatusBoard),
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut waiting = Waiting::new(SPINS, deadlines, status);
    while !is_over()? {
        match waiting.pause() {
            Ok(false) => {}
            Ok(true) => check()?,
            Err(WaitFailure::Overdue(waited)) => {
                // This rank may itself have been descheduled.
                if is_over()? {
                    break;
                }
                return Err(Error::Overdue { rank: status.rank(), what, waited });
            }
            Err(WaitFailure::Failed(error)) => return Err(error),
        }
    }
    Ok(())
}

/// # Errors
/// [`Error::Unsupported`] if the CUDA driver cannot be loaded, with the remedy.
#[allow(unsafe_code, reason = "loading the driver to test for its presence")]
fn check_driver() -> Result<()> {
    // A program with candle's kernels is linked with the driver, and would not have started without it.
    #[cfg(feature = "cuda")]
    let is_there = true;
    // SAFETY: this only loads the driver's library, whose initialisers have no effect on the process.
    #[cfg(not(feature = "cuda"))]
    let is_there = unsafe { cudarc::driver::sys::is_culib_present() };
    if is_there {
        return Ok(());
    }
    Err(Error::Unsupported(
        "arrays on a GPU need NVIDIA's driver (libcuda.so.1), which this machine lacks: use arrays in host memory".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use crate::transport::Fabric;
    use crate::while_waiting::while_waiting;

    #[test]
    fn work_that_ends_before_the_last_poll_is_not_overdue() {
        const TIMEOUT: Duration = Duration::from_millis(50);
        thread_local!(static CALLBACKS: Cell<u32> = const { Cell::new(0) });
        fn slow() -> Result<(), String> {
            std::thread::sleep(2 * TIMEOUT);
            CALLBACKS.set(CALLBACKS.get() + 1);
            Ok(())
        }
        let fabrics = Fabric::threads(1).unwrap();
        let limits = (&Deadlines { timeout: TIMEOUT, quiet: TIMEOUT }, fabrics[0].status());
        // The second callback runs after the deadline.
        let is_over = || Ok(CALLBACKS.get() == 2);
        while_waiting(slow, || wait_for(is_over, "work", limits, || Ok(()))).unwrap();
    }
}
