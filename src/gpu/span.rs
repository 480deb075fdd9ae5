//! Bytes on a GPU that are lent for a call.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, DriverError};

use crate::dtype::Element;
use crate::error::{Error, Result};

/// Lends an array on a GPU to `work`, which queues what it does to it on `stream`, or so that `stream` waits for it.
///
/// # Errors
/// [`Error::Unsupported`] if the array and the stream are on different GPUs.
pub(crate) fn lend<T: Element, R>(
    array: &mut impl DevicePtrMut<T>,
    stream: &Arc<CudaStream>,
    work: impl FnOnce(&mut Span<'_>) -> Result<R>,
) -> Result<R> {
    let (size_bytes, home) = (size_of::<T>() * array.len(), array.stream().context().ordinal());
    if home != stream.context().ordinal() {
        return Err(Error::Unsupported(format!(
            "the array is on GPU {home}, and the stream on GPU {}: give a stream of the array's GPU",
            stream.context().ordinal()
        )));
    }
    // What others have queued on the array goes before; what they queue later waits for `stream`, once this is dropped.
    let (address, _queued) = array.device_ptr_mut(stream);
    // SAFETY: the array has so many bytes there, and is borrowed mutably until `work` has queued all that it does to it.
    let mut span = unsafe { Span::new(stream.context(), address, size_bytes) };
    work(&mut span)
}

/// An array of no elements. CUDA refuses to allocate nothing, so there is a byte behind it.
pub(crate) fn nothing<T: DeviceRepr>(stream: &Arc<CudaStream>) -> Result<CudaSlice<T>, DriverError> {
    let byte = stream.alloc_zeros::<u8>(1)?;
    // SAFETY: the address is that of an allocation, which the array frees in place of `byte`, and has room for no elements.
    Ok(unsafe { stream.upgrade_device_ptr(byte.leak(), 0) })
}

/// A part of the memory of a GPU. While this lives, nobody else queues work on it.
#[derive(Debug)]
pub(crate) struct Span<'a> {
    context: &'a Arc<CudaContext>,
    address: CUdeviceptr,
    size_bytes: usize,
    lent: PhantomData<&'a mut [u8]>,
}

impl<'a> Span<'a> {
    /// # Safety
    /// There must be so many bytes at this address of the context's GPU, and they must be lent to the caller for `'a`.
    unsafe fn new(context: &'a Arc<CudaContext>, address: CUdeviceptr, size_bytes: usize) -> Self {
        Self { context, address, size_bytes, lent: PhantomData }
    }

    /// The GPU that it is on.
    pub(crate) fn context(&self) -> &'a Arc<CudaContext> {
        self.context
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// A range of its bytes.
    ///
    /// # Panics
    /// If they are not all in it.
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
