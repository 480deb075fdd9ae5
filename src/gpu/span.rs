//! Device memory that is borrowed for a call.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, DriverError, ValidAsZeroBits,
};

use super::cuda;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Passes an array in device memory to `work`, which queues all its work on the array on `stream`, or makes `stream` wait
/// for it.
///
/// # Errors
/// [`Error::Unsupported`] if the array and the stream are in different contexts.
pub(crate) fn lend<T: Element, R>(
    array: &mut impl DevicePtrMut<T>,
    stream: &Arc<CudaStream>,
    work: impl FnOnce(&mut Span<'_>) -> Result<R>,
) -> Result<R> {
    let (size_bytes, own) = (size_of::<T>() * array.len(), Arc::clone(array.stream()));
    let (home, here) = (own.context(), stream.context());
    if home != here {
        return Err(Error::Unsupported(format!(
            "the array is in a context of GPU {}, and the stream in another one of GPU {}: pass a stream of the array's context",
            home.ordinal(),
            here.ordinal()
        )));
    }
    // `stream` waits for work already queued on the array. Work queued later waits for `stream` once this is dropped.
    let (address, queued) = array.device_ptr_mut(stream);
    // SAFETY: the array has this many bytes at this address, and its mutable borrow lasts until `work` has queued all its
    // work.
    let mut span = unsafe { Span::new(stream.context(), address, size_bytes) };
    let done = work(&mut span);
    drop(queued);
    // cudarc frees an array after its users on other streams only if it tracks them, those of one object of the context. Even if the work
    // failed, a part of it may be queued.
    let is_tracked = Arc::ptr_eq(home, here) && home.is_managing_stream_synchronization();
    let is_ordered = is_tracked || own == *stream;
    let ordered = if is_ordered { Ok(()) } else { own.join(stream).map_err(cuda("order of streams")) };
    done.and_then(|done| ordered.map(|()| done))
}

/// Creates an array of no elements. CUDA refuses to allocate zero bytes, so it allocates one.
pub(crate) fn nothing<T: DeviceRepr>(stream: &Arc<CudaStream>) -> Result<CudaSlice<T>, DriverError> {
    let byte = stream.alloc_zeros::<u8>(1)?;
    // SAFETY: the address is that of a leaked allocation of this stream, which the array now owns and frees; no elements fit
    // any memory.
    Ok(unsafe { stream.upgrade_device_ptr(byte.leak(), 0) })
}

/// Creates an array of `count` zeros, which any stream may use at once. It belongs to `owner`, which frees it.
pub(crate) fn zeros<T: DeviceRepr + ValidAsZeroBits>(
    owner: &Arc<CudaStream>,
    count: usize,
) -> Result<CudaSlice<T>, DriverError> {
    // On a stream without other work: the work of `owner` may include collectives, which wait for other ranks.
    let stream = owner.context().new_stream()?;
    // CUDA refuses to allocate zero bytes.
    let array = stream.alloc_zeros::<T>(count.max(1))?;
    stream.synchronize()?;
    // SAFETY: the address is that of a leaked allocation of at least this many elements in the same context, which the array now owns
    // and frees. The allocation is complete, so `owner` frees it later.
    Ok(unsafe { owner.upgrade_device_ptr(array.leak(), count) })
}

/// A part of a GPU's memory. While it exists, no other code queues work on it.
#[derive(Debug)]
pub(crate) struct Span<'a> {
    context: &'a Arc<CudaContext>,
    address: CUdeviceptr,
    size_bytes: usize,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> Span<'a> {
    /// # Safety
    /// The context's GPU must have this many bytes at this address, and they must be exclusively borrowed for `'a`.
    unsafe fn new(context: &'a Arc<CudaContext>, address: CUdeviceptr, size_bytes: usize) -> Self {
        Self { context, address, size_bytes, lent: PhantomData }
    }

    pub(crate) fn context(&self) -> &'a Arc<CudaContext> {
        self.context
    }

    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns a range of its bytes.
    pub(crate) fn part(&mut self, bytes: Range<usize>) -> Span<'_> {
        assert!(
            bytes.start <= bytes.end && bytes.end <= self.size_bytes,
            "bytes {bytes:?} of a span of {}",
            self.size_bytes
        );
        let address = self.address + bytes.start as CUdeviceptr;
        Span { context: self.context, address, size_bytes: bytes.len(), lent: PhantomData }
    }
}
