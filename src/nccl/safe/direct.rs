//! NCCL's all-reduce without Unisono's agreement and ordering, to measure their cost.

use cudarc::driver::CudaStream;
use unisono_collectives::Operation;

use super::Communicator;
use super::checks::{count, data_type};
use crate::dtype::DType;
use crate::error::Result;
use crate::gpu::Span;
use crate::nccl::result::{Elements, On};
use crate::nccl::sys;

impl Communicator {
    /// Sums the buffers of all ranks with `ncclAllReduce`, and polls the non-blocking communicator until NCCL has enqueued
    /// it. Only the checks that soundness needs remain, which take a few nanoseconds; the context must be current on this
    /// thread.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    ///
    /// # Panics
    /// If the communicator was aborted or has a call in progress, the buffer is not whole elements, or the buffer or the
    /// stream belongs to another context.
    pub(crate) fn sum_directly(
        &mut self,
        buffer: &mut Span<'_>,
        dtype: DType,
        stream: &CudaStream,
    ) -> Result<()> {
        assert!(!self.comm.is_null() && self.settled, "the communicator is ready");
        assert!(
            *buffer.context() == self.device && *stream.context() == self.device,
            "all are on the same GPU"
        );
        let (start, count) = (buffer.address() as *mut u8, count(buffer.size_bytes(), dtype));
        let all = Elements { start, count, dtype: data_type(dtype) };
        let on = On { comm: self.comm, stream: stream.cu_stream().cast() };
        let nccl = self.library.functions();
        // SAFETY: the communicator was created, was not ended, and has no call in progress; the elements and the stream
        // belong to its context; the span is exclusively borrowed until all work on it has been queued on the stream.
        let made = unsafe { nccl.collective(Operation::AllReduce, (all, all), (sys::ncclSum, 0), on) };
        self.complete("ncclAllReduce", made)
    }
}
