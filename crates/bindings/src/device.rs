//! Arrays in GPU memory, by their address.

#[cfg(feature = "nccl")]
use unisono::DeviceArray;
use unisono::{Communicator, Element, Result};

use crate::Collective;

/// An array in GPU memory, and the CUDA stream on which its work is ordered.
#[derive(Debug, Clone, Copy)]
pub struct OnGpu {
    /// The address of the first element; any number for an empty array.
    pub address: usize,
    /// The number of elements.
    pub count: usize,
    /// The handle of the stream: a `CUstream` or `cudaStream_t`; 0 is the default stream.
    pub stream: usize,
}

impl Collective {
    /// Makes the call on an array in GPU memory, ordered on its stream. The GPU may still be working when it returns.
    ///
    /// # Errors
    /// As `Communicator::run_device` and `DeviceArray::new`; without the feature `nccl`, it is refused.
    ///
    /// # Safety
    /// The array and the stream meet the requirements of `DeviceArray::new`.
    pub unsafe fn on_gpu<T: Element>(self, comm: &mut Communicator, array: OnGpu) -> Result<()> {
        #[cfg(feature = "nccl")]
        // SAFETY: as the caller promises.
        return unsafe { lent::<T>(array) }.and_then(|mut array| {
            let stream = array.on();
            comm.run_device(self.operation, self.op, &mut array, &stream).map(drop)
        });
        #[cfg(not(feature = "nccl"))]
        refused(comm, array)
    }
}

/// Orders work that is queued on the stream from now on after the work that each rank has queued on its own stream.
///
/// # Errors
/// As `Communicator::barrier_device`; without the feature `nccl`, it is refused.
///
/// # Safety
/// The stream exists until that work is done.
pub unsafe fn barrier(comm: &mut Communicator, stream: usize) -> Result<()> {
    let nothing = OnGpu { address: 0, count: 0, stream };
    #[cfg(feature = "nccl")]
    // SAFETY: as the caller promises.
    return unsafe { lent::<u8>(nothing) }.and_then(|array| comm.barrier_device(&array.on()).map(drop));
    #[cfg(not(feature = "nccl"))]
    refused(comm, nothing)
}

/// Waits until the work now queued on the stream is done, with a deadline.
///
/// # Errors
/// As `Communicator::synchronize`; without the feature `nccl`, it is refused.
///
/// # Safety
/// The stream exists.
pub unsafe fn synchronize(comm: &mut Communicator, stream: usize) -> Result<()> {
    let nothing = OnGpu { address: 0, count: 0, stream };
    #[cfg(feature = "nccl")]
    // SAFETY: as the caller promises.
    return unsafe { lent::<u8>(nothing) }.and_then(|array| comm.synchronize(&array.on()));
    #[cfg(not(feature = "nccl"))]
    refused(comm, nothing)
}

/// # Safety
/// As [`DeviceArray::new`].
#[cfg(feature = "nccl")]
unsafe fn lent<T: Element>(array: OnGpu) -> Result<DeviceArray<T>> {
    let stream = std::ptr::with_exposed_provenance_mut(array.stream);
    // SAFETY: as the caller promises.
    unsafe { DeviceArray::new(array.address as u64, array.count, stream) }
}

#[cfg(not(feature = "nccl"))]
fn refused(_: &mut Communicator, _: OnGpu) -> Result<()> {
    Err(unisono::Error::Unsupported(
        "this library is built without arrays on GPUs: build it with the feature `nccl`, or copy the array to host memory".to_owned(),
    ))
}
