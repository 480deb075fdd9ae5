//! Parts of a call on arrays on GPUs, one by one: what a check on a machine with a GPU measures beside what it stands for.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtrMut};

use crate::Communicator;
use crate::collective::Options;
pub use crate::device::Way;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::gpu::lend;
use crate::kernels::ReduceOp;
use crate::nccl::{self, UniqueId};

/// How long the only rank of a communicator waits for NCCL.
const ALONE: Duration = Duration::from_secs(60);

/// Copies an array as an all-reduce through the host does, in the same pieces through the same pinned memory, but without the ranks
/// and the host's work between; returns when the GPU is done. It needs no other rank, once this rank's GPU is set up
/// ([`Communicator::device_route`]).
///
/// The pinned memory has room for a few pieces and not for the array. So what [`Way::Up`] leaves in the array is of no use, and it needs a
/// call of [`Way::Both`] for an array of the same size before, which makes the room and leaves the array as it is.
///
/// # Errors
/// As [`Communicator::all_reduce_device`].
pub fn copy_in_pieces(
    comm: &mut Communicator,
    array: &mut CudaSlice<u8>,
    stream: &Arc<CudaStream>,
    way: Way,
) -> Result<()> {
    comm.on_gpu(stream.context(), |engine, gpu| {
        let waits = (&engine.deadlines(&Options::default()), &engine.status);
        lend(array, stream, |span| gpu.copy_in_pieces(span, stream, way, waits))
    })
}

/// Adds up an array by `ncclAllReduce` and nothing else, on the communicator that [`Communicator::all_reduce_device`] uses: as a
/// program would that trusts itself to call the same on all ranks.
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
        let nccl = gpu.nccl.as_mut().ok_or_else(|| Error::Unsupported(format!("arrays go {route}")))?;
        lend(array, stream, |span| nccl.sum_directly(span, T::DTYPE, stream))
    })
}

/// A communicator of NCCL's with one rank.
#[derive(Debug)]
pub struct Alone {
    nccl: nccl::Communicator,
}

impl Alone {
    /// # Errors
    /// [`Error::Library`] if there is no NCCL, [`Error::Nccl`] if it fails.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let library = nccl::library()?;
        let mut nccl = nccl::Communicator::begin(library, 1, 0, &UniqueId::new(library)?, context, ALONE)?;
        nccl.wait_until_ready(ALONE)?;
        Ok(Self { nccl })
    }

    /// Adds up an array, with the checks that our calls make.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL fails.
    pub fn sum(&mut self, array: &mut CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<()> {
        lend(array, stream, |span| self.nccl.all_reduce(span, DType::F32, ReduceOp::Sum, stream))
    }

    /// Adds up an array by `ncclAllReduce` and nothing else.
    ///
    /// # Errors
    /// [`Error::Nccl`] if NCCL fails.
    pub fn sum_directly(&mut self, array: &mut CudaSlice<f32>, stream: &Arc<CudaStream>) -> Result<()> {
        lend(array, stream, |span| self.nccl.sum_directly(span, DType::F32, stream))
    }
}
