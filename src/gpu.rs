//! A GPU: its context, events on its streams, and device memory borrowed for a call.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use crate::error::{Error, Result};

#[allow(unsafe_code, reason = "addresses of device memory")]
mod span;

pub(crate) use span::{Span, lend, nothing};

/// Converts an error of the CUDA driver; `what` names the failed operation.
pub(crate) fn cuda(what: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |cause| Error::Cuda { what, cause }
}

/// Creates the context of a local rank's GPU: local ranks are assigned in turn to the GPUs that this process sees.
///
/// # Errors
/// [`Error::Unsupported`] if there is no driver or no GPU, with the remedy.
pub(crate) fn context(local_rank: usize) -> Result<Arc<CudaContext>> {
    if !driver::is_there() {
        return Err(Error::Unsupported(
            "arrays on a GPU need NVIDIA's driver (libcuda.so.1), which this machine lacks; leave out --memory device and \
             --device cuda"
                .to_owned(),
        ));
    }
    let none = |why: String| {
        let hint = "nvidia-smi lists the GPUs, and CUDA_VISIBLE_DEVICES may hide some";
        Error::Unsupported(format!("no GPU can be used: {why}; {hint}"))
    };
    match CudaContext::device_count() {
        Err(error) => Err(none(error.to_string())),
        Ok(..=0) => Err(none("none was found".to_owned())),
        Ok(count) => CudaContext::new(local_rank % count as usize).map_err(cuda("the GPU's context")),
    }
}

/// Records an event on a stream.
pub(crate) fn moment(stream: &CudaStream) -> Result<CudaEvent> {
    stream.record_event(None).map_err(cuda("order of streams"))
}

#[allow(unsafe_code, reason = "loading the driver to test for its presence")]
mod driver {
    /// Returns whether the CUDA driver can be loaded.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn is_there() -> bool {
        // SAFETY: this only loads the driver's library, whose initialisers have no effect on the process.
        unsafe { cudarc::driver::sys::is_culib_present() }
    }

    /// A program with candle's kernels is linked with the driver, and would not have started without it.
    #[cfg(feature = "cuda")]
    pub(super) fn is_there() -> bool {
        true
    }
}
