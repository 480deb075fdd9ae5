//! NCCL's all-reduce without what we do around it, to be measured beside ours.

use cudarc::driver::CudaStream;

use super::Communicator;
use super::checks::{count, data_type};
use crate::dtype::DType;
use crate::error::Result;
use crate::gpu::Span;
use crate::nccl::result::{Elements, On, Progress};
use crate::nccl::sys;

impl Communicator {
    /// Adds up the buffer of all ranks by `ncclAllReduce`, and, since the communicator does not block, asks NCCL until it has enqueued
    /// it. What would be unsound is still refused, which takes a few nanoseconds; the context is to be the thread's.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If the communicator was aborted or is at work, the buffer is not whole elements, or it or the stream belong to another context.
    pub(crate) fn sum_directly(
        &mut self,
        buffer: &mut Span<'_>,
        dtype: DType,
        stream: &CudaStream,
    ) -> Result<()> {
        assert!(!self.comm.is_null() && self.settled, "the communicator is ready");
        assert!(*buffer.context() == self.device && *stream.context() == self.device, "all are of one GPU");
        let (start, count) = (buffer.address() as *mut u8, count(buffer.size_bytes(), dtype));
        let elements = Elements { start, count, dtype: data_type(dtype) };
        let on = On { comm: self.comm, stream: stream.cu_stream().cast() };
        // SAFETY: the communicator was begun, was not ended, and is at rest; the elements and the stream are of its context; the
        // span is lent for what comes to be on the stream.
        let made = unsafe { self.library.functions().all_reduce(elements, sys::ncclSum, on) };
        let settled = match made {
            Ok(Progress::Done) => Ok(()),
            Ok(Progress::Begun) => self.settle("ncclAllReduce", self.timeout),
            Err(error) => Err(error),
        };
        self.or_abort(settled)
    }
}
