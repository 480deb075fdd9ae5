//! A GPU: its context, moments on its streams, and memory on it that is lent for a call.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};

use crate::error::{Error, Result};

#[allow(unsafe_code, reason = "memory that the host cannot reach")]
mod span;

pub(crate) use span::{Span, lend, nothing};

/// An error of CUDA's driver, with what was to be done.
pub(crate) fn cuda(what: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |cause| Error::Cuda { what, cause }
}

/// The GPU for a local rank: ranks take turns at those that this process sees.
///
/// # Errors
/// [`Error::Unsupported`] if there is no driver or no GPU; what to do.
pub(crate) fn context(local_rank: usize) -> Result<Arc<CudaContext>> {
    if !driver::is_there() {
        return Err(Error::Unsupported(
            "arrays on a GPU need NVIDIA's driver (libcuda.so.1), which is not on this machine; leave out --memory device and \
             --device cuda"
                .to_owned(),
        ));
    }
    let none = |why: String| {
        let hint = "nvidia-smi lists what there is, and CUDA_VISIBLE_DEVICES may hide some";
        Error::Unsupported(format!("no GPU can be used: {why}; {hint}"))
    };
    match CudaContext::device_count() {
        Err(error) => Err(none(error.to_string())),
        Ok(..=0) => Err(none("there is none".to_owned())),
        Ok(count) => CudaContext::new(local_rank % count as usize).map_err(cuda("the GPU's context")),
    }
}

/// A moment on a stream.
pub(crate) fn moment(stream: &CudaStream) -> Result<CudaEvent> {
    stream.record_event(None).map_err(cuda("order of streams"))
}

#[allow(unsafe_code, reason = "the library is loaded to see whether it is there")]
mod driver {
    /// Whether CUDA's driver can be loaded.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn is_there() -> bool {
        // SAFETY: the driver's library does nothing when it is loaded.
        unsafe { cudarc::driver::sys::is_culib_present() }
    }

    /// Where candle's kernels are built in, the program is linked with the driver, and would not run without it.
    #[cfg(feature = "cuda")]
    pub(super) fn is_there() -> bool {
        true
    }
}
