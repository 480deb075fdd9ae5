//! Parts of a call on device memory, measured separately: `gpu-check` compares each with the plain operation.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use unisono_collectives::Operation;

use crate::Communicator;
use crate::collective::Options;
pub use crate::device::Way;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::gpu::lend;
use crate::kernels::ReduceOp;

/// Copies an array as an all-reduce through the host does, in the same segments through the same pinned memory, without the
/// ranks' and the host's work in between; returns once the GPU has finished. It involves no other rank, once this rank's GPU
/// is set up ([`Communicator::device_route`]).
///
/// The pinned memory holds a few segments, not the whole array. So the contents of the array after [`Way::Up`] are meaningless.
/// [`Way::Up`] needs an earlier call with [`Way::Both`] on an array of the same size, which allocates the memory and leaves the
/// array unchanged.
///
/// # Errors
/// As [`Communicator::all_reduce_device`].
pub fn copy_in_segments(
    comm: &mut Communicator,
    array: &mut CudaSlice<u8>,
    stream: &Arc<CudaStream>,
    way: Way,
) -> Result<()> {
    comm.on_gpu(stream.context(), |engine, gpu| {
        let waits = (&engine.deadlines(&Options::default()), &engine.status);
        lend(array, stream, |span| gpu.copy_in_segments(span, stream, way, waits))
    })
}

/// Sums an array with `ncclAllReduce` alone, on the communicator that [`Communicator::all_reduce_device`] uses, like a
/// program that relies on all ranks making the same calls.
///
/// # Errors
/// [`Error::Unsupported`] if NCCL is not used among these ranks; otherwise as [`Communicator::all_reduce_device`].
pub fn nccl_all_reduce<T: Element>(
    comm: &mut Communicator,
    array: &mut impl DevicePtrMut<T>,
    stream: &Arc<CudaStream>,
) -> Result<()> {
    comm.on_gpu(stream.context(), |_, gpu| {
        let route = gpu.route();
        let nccl =
            gpu.nccl.as_mut().ok_or_else(|| Error::Unsupported(format!("arrays are reduced {route}")))?;
        let sum = (Operation::AllReduce, Some(ReduceOp::Sum), T::DTYPE);
        lend(array, stream, |span| nccl.run(span, sum, &[], stream))
    })
}
