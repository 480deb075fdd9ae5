//! The pool for stream-ordered allocations of a GPU's memory.

use std::ptr;

use cudarc::driver::result::mem_pool;
use cudarc::driver::sys::{self, CUdevice_attribute, CUmemPool_attribute};
use cudarc::driver::{CudaContext, DriverError};

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
    unsafe { mem_pool::set_attribute(pool, threshold, (&raw mut most).cast()) }
}
