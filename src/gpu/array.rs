//! Arrays of other libraries in GPU memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr, CUpointer_attribute};
use cudarc::driver::{CudaContext, CudaStream, DevicePtrMut, DeviceSlice, SyncOnDrop, result};

use super::contexts::{Current, of_stream, primary};
use super::{check_driver, cuda};
use crate::dtype::Element;
use crate::error::{Error, Result};

/// `CU_MEMORYTYPE_HOST`.
const IN_HOST_MEMORY: u32 = 1;

/// An array in GPU memory that another library has allocated, with a stream of that library: for programs that do not use cudarc.
///
/// The collectives of a [`Communicator`](crate::Communicator) take it like a [`CudaSlice`](cudarc::driver::CudaSlice). Dropping it
/// frees nothing, and makes the CUDA context current again that was current on this thread before.
///
/// ```no_run
/// use unisono::{DeviceArray, Operation, ReduceOp};
///
/// # fn gradients() -> (u64, *mut std::ffi::c_void) { unreachable!() }
/// # fn main() -> unisono::Result<()> {
/// # let mut comm = unisono::Unisono::builder().threads(1)?.remove(0);
/// let (address, stream) = gradients();
/// // SAFETY: the array has 1000 elements, and is used on this stream only.
/// let mut array = unsafe { DeviceArray::<f32>::new(address, 1000, stream)? };
/// let stream = array.on();
/// comm.run_device(Operation::AllReduce, Some(ReduceOp::Sum), &mut array, &stream)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeviceArray<T> {
    address: CUdeviceptr,
    count: usize,
    stream: Arc<CudaStream>,
    /// Dropped on the thread that created it, so the array is not `Send`.
    _before: Current,
    elements: PhantomData<*mut T>,
}

impl<T: Element> DeviceArray<T> {
    /// Returns an array of `count` elements at an address, whose work is ordered on `stream`, a `CUstream` or `cudaStream_t`; null is the
    /// default stream. An array of no elements may have the address 0: it is on the GPU of the stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no driver, or if the address is not in GPU memory or not aligned; [`Error::Cuda`] if the GPU is not
    /// usable.
    ///
    /// # Safety
    /// Until all work that is queued on the stream with this array is done, the address has `count` elements, other streams leave them
    /// alone, and the stream exists. They belong to the primary context of a GPU, as those of the CUDA runtime do.
    pub unsafe fn new(address: u64, count: usize, stream: *mut c_void) -> Result<Self> {
        check_driver()?;
        let before = Current::get();
        // SAFETY: as the caller promises.
        let found = || unsafe { of_stream(stream.cast(), &before) }.map_err(cuda("the GPU's context"));
        let context = if count == 0 { found()? } else { context_of(address)? };
        // SAFETY: as the caller promises.
        let stream = unsafe { context.wrap_borrowed_stream(stream.cast()) };
        let array = Self { address, count, stream, _before: before, elements: PhantomData };
        if address.is_multiple_of(align_of::<T>() as u64) {
            return Ok(array);
        }
        Err(Error::Unsupported(format!("the array at {address:#x} is not aligned for {}", T::DTYPE)))
    }

    /// Returns its stream.
    pub fn on(&self) -> Arc<CudaStream> {
        Arc::clone(&self.stream)
    }
}

/// Returns the context of the GPU that has memory at this address.
fn context_of(address: CUdeviceptr) -> Result<Arc<CudaContext>> {
    const KIND: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    const ORDINAL: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    result::init().map_err(cuda("the driver"))?;
    let (mut kind, mut ordinal) = (0_u32, 0_i32);
    // SAFETY: the driver writes a number of this size to each address, which is valid for that. It looks up the array's address
    // among its allocations, so that may be any number.
    let found = unsafe {
        let found = sys::cuPointerGetAttribute((&raw mut kind).cast(), KIND, address).result();
        found.and_then(|()| sys::cuPointerGetAttribute((&raw mut ordinal).cast(), ORDINAL, address).result())
    };
    if found.is_err() || kind == IN_HOST_MEMORY {
        return Err(Error::Unsupported(format!("{address:#x} is not in the memory of a GPU")));
    }
    primary(ordinal as usize).map_err(cuda("the GPU's context"))
}

impl<T> DeviceSlice<T> for DeviceArray<T> {
    fn len(&self) -> usize {
        self.count
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtrMut<T> for DeviceArray<T> {
    fn device_ptr_mut<'a>(&'a mut self, _stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Record(None))
    }
}
