//! The contexts of GPUs, the context that is current on a thread, and the pool for stream-ordered allocations of a GPU's memory.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdevice_attribute, CUmemPool_attribute, CUstream};
use cudarc::driver::{CudaContext, DriverError, result};

/// The handles up to this one are default streams, which belong to the thread's current context.
const LAST_DEFAULT_STREAM: usize = 2;

/// Returns the primary context of a GPU, one object for the whole process: cudarc orders the streams of one object only, and releasing the
/// last one would change the thread's current context.
pub(super) fn primary(ordinal: usize) -> Result<Arc<CudaContext>, DriverError> {
    static ALL: Mutex<BTreeMap<usize, Arc<CudaContext>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = all.get(&ordinal) {
        return Ok(Arc::clone(context));
    }
    let context = CudaContext::new(ordinal)?;
    all.insert(ordinal, Arc::clone(&context));
    Ok(context)
}

/// Returns the context of a stream's GPU, which becomes current. A default stream is on the thread's current GPU, or else on the first one.
///
/// # Safety
/// The stream exists.
pub(super) unsafe fn of_stream(stream: CUstream, current: &Current) -> Result<Arc<CudaContext>, DriverError> {
    if current.0.is_null() && stream.addr() <= LAST_DEFAULT_STREAM {
        return primary(0);
    }
    result::init()?;
    let (mut context, mut device) = (ptr::null_mut(), 0);
    // SAFETY: the stream exists, as the caller promises, and so does its context; the pointers are valid for the writes.
    unsafe {
        sys::cuStreamGetCtx(stream, &raw mut context).result()?;
        sys::cuCtxSetCurrent(context).result()?;
        sys::cuCtxGetDevice(&raw mut device).result()?;
    }
    primary(device as usize)
}

/// Makes the pool keep freed memory for later allocations, up to the end of the process.
///
/// By default the driver returns it to the system whenever the host waits for a stream, so each step of a training run maps all its
/// memory again. On an H100, allocating 100 arrays of 505 MB in total then takes 1.4 ms, against 0.2 ms if memory is kept.
pub(crate) fn keep_freed(context: &CudaContext) -> Result<(), DriverError> {
    let has_pools = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
    if context.attribute(has_pools)? == 0 {
        return Ok(());
    }
    let (mut pool, mut most) = (ptr::null_mut(), u64::MAX);
    // SAFETY: it writes a handle to the address, which is valid during the call.
    unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) }.result()?;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the default pool of a device lives as long as the device, and the attribute is a `cuuint64_t`, which the call only reads.
    unsafe { result::mem_pool::set_attribute(pool, threshold, (&raw mut most).cast()) }
}

/// The context that is current on this thread. Dropping it makes that context current again.
#[derive(Debug)]
pub(crate) struct Current(CUcontext);

// SAFETY: a handle, which any thread may make current.
unsafe impl Send for Current {}

impl Current {
    pub(crate) fn get() -> Self {
        let mut current = ptr::null_mut();
        // SAFETY: the pointer is valid for the write. The call fails if the driver is not initialised, and no context is current then.
        let is_known = unsafe { sys::cuCtxGetCurrent(&raw mut current) }.result().is_ok();
        Self(if is_known { current } else { ptr::null_mut() })
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: the program had made this context current. Null, if it had none, is valid too.
        if let Err(error) = unsafe { sys::cuCtxSetCurrent(self.0) }.result() {
            tracing::warn!(%error, "the thread's CUDA context could not be made current again");
        }
    }
}
