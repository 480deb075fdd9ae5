//! Parts of a call on device memory, to measure separately: `gpu-check` compares each with the plain operation.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};

use crate::collective::Options;
pub use crate::device::Way;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::gpu::lend;
use crate::kernels::ReduceOp;
use crate::nccl::{self, UniqueId};
use crate::status::StatusBoard;
use crate::transport::Deadlines;
use crate::{Communicator, Operation};

/// The deadline of the single rank of a communicator in NCCL.
const ALONE: Duration = Duration::from_secs(60);

/// Copies an array as an all-reduce through the host does, in the same segments through the same pinned memory, without the
/// ranks' and the host's work in between; returns once the GPU has finished. It involves no other rank, once this rank's GPU
/// is set up ([`Communicator::device_route`]).
///
/// The pinned memory has room for a few segments, not for the array. So the contents of the array after [`Way::Up`] are
/// meaningless, and that needs an earlier call with [`Way::Both`] on an array of the same size, which allocates the memory
/// and leaves the array unchanged.
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
        lend(array, stream, |span| nccl.sum_directly(span, T::DTYPE, stream))
    })
}

/// An NCCL communicator of one rank.
#[derive(Debug)]
pub struct Alone {
    nccl: nccl::Communicator,
}

impl Alone {
    /// Creates the communicator.
    ///
    /// # Errors
    /// [`Error::Library`] if there is no NCCL, [`Error::Nccl`] if it fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let library = nccl::library()?;
        let patience = (Deadlines { timeout: ALONE, quiet: ALONE }, StatusBoard::alone(0, 1)?);
        let mut nccl = nccl::Communicator::begin(library, 1, 0, &UniqueId::new(library)?, context, patience)?;
        nccl.wait_until_ready()?;
        Ok(Self { nccl })
    }

    /// Sums an array, with the checks that our calls make.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL fails.
    pub fn sum(&mut self, array: &mut CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<()> {
        let call = (Operation::AllReduce, Some(ReduceOp::Sum), DType::F32);
        lend(array, stream, |span| self.nccl.run(span, call, &[], stream))
    }

    /// Sums an array with `ncclAllReduce` alone.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL fails.
    pub fn sum_directly(&mut self, array: &mut CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<()> {
        lend(array, stream, |span| self.nccl.sum_directly(span, DType::F32, stream))
    }
}
