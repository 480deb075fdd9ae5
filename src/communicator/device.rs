//! The collectives of a communicator on arrays in GPU memory.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, ValidAsZeroBits,
};

use unisono_collectives::Operation;

use super::Communicator;
use crate::call::{Call, Ran};
use crate::collective::{DeviceCall, Engine};
use crate::device::{Gpu, HostToDevice};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::gpu::{self, cuda, lend, on_any_thread};
use crate::kernels::ReduceOp;
use crate::request::Request;
use crate::select::Choice;
use crate::transport::gather_results;

impl Communicator {
    /// Returns this rank's GPU. The visible GPUs (`CUDA_VISIBLE_DEVICES`) are assigned to the ranks of a node round-robin by
    /// local rank.
    ///
    /// A local operation: ranks may call it independently, at any time. Arrays on this GPU may also come from elsewhere: a
    /// cudarc context with the same ordinal is the same GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if there is no driver or no GPU, [`Error::Cuda`](crate::Error::Cuda) if
    /// it is not usable.
    pub fn device(&self) -> Result<Arc<CudaContext>> {
        if let Some(context) = self.device.get() {
            return Ok(Arc::clone(context));
        }
        let context = gpu::context(self.local_rank)?;
        Ok(Arc::clone(self.device.get_or_init(|| context)))
    }

    /// Allocates an array of `count` zeros on [this rank's GPU](Communicator::device), which any stream may use. A local operation: it does
    /// not wait for calls that are queued on the GPU.
    ///
    /// # Errors
    /// As [`Communicator::device`].
    pub fn alloc_device<T: Element + DeviceRepr + ValidAsZeroBits>(
        &self,
        count: usize,
    ) -> Result<CudaSlice<T>> {
        gpu::zeros(&self.device()?.default_stream(), count).map_err(cuda("memory on the GPU"))
    }

    /// Copies arrays to the GPU of `stream` while it computes, for work on that stream, through this many buffers of pinned memory: as
    /// many copies may be in flight. Other ranks do not take part, and it may move to another thread.
    ///
    /// From then on, the GPU's default memory pool keeps memory that this process frees for later allocations: mapping the memory
    /// of every batch again would take longer than copying it.
    ///
    /// ```no_run
    /// # fn main() -> unisono::Result<()> {
    /// # let mut comm = unisono::Unisono::builder().threads(1)?.remove(0);
    /// let stream = comm.device()?.new_stream().expect("a stream");
    /// let mut copies = comm.host_to_device(&stream, 2)?;
    /// let batch = copies.copy(&[1.0_f32, 2.0])?;
    /// // Kernels that are launched on `stream` from now on find the values of `batch`.
    /// # drop(batch);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) if the GPU is not usable.
    ///
    /// # Panics
    /// If the number of buffers is 0.
    pub fn host_to_device(&mut self, stream: &Arc<CudaStream>, buffers: usize) -> Result<HostToDevice> {
        let timeout = self.engine_owner.limits().usual.timeout;
        HostToDevice::new(self.rank(), timeout, stream, buffers)
    }

    /// Like [`Communicator::all_reduce`], on an array in GPU memory: a [`CudaSlice`] or a view of one.
    ///
    /// The reduction is ordered on `stream`, after the work queued now and before later work. The call may return while the GPU
    /// is still working; [`Communicator::synchronize`] waits for it, with a deadline. All arrays of a rank are on one GPU. The
    /// first call sets up NCCL, which takes about a second.
    ///
    /// ```no_run
    /// use unisono::ReduceOp;
    ///
    /// # fn main() -> unisono::Result<()> {
    /// # let mut comm = unisono::Unisono::builder().threads(1)?.remove(0);
    /// let stream = comm.device()?.default_stream();
    /// let mut gradients = comm.alloc_device::<f32>(1 << 20)?;
    /// let ran = comm.all_reduce_device(&mut gradients, ReduceOp::Mean, &stream)?;
    /// println!("{ran}");
    /// comm.synchronize(&stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; [`Error::Overdue`](crate::Error::Overdue) if the GPU does not finish in time; and
    /// [`Error::Unsupported`](crate::Error::Unsupported), which refuses the call, if the array is on another GPU than earlier
    /// ones or the method chosen by name is not available.
    pub fn all_reduce_device<T: Element>(
        &mut self,
        buffer: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
        stream: &Arc<CudaStream>,
    ) -> Result<Ran> {
        self.run_device(Operation::AllReduce, Some(op), buffer, stream)
    }

    /// Carries out any collective on an array in GPU memory, in place, ordered on `stream` as [`Communicator::all_reduce_device`] is; with
    /// a reduction if the operation reduces. A reduce-scatter and an all-gather use [`Communicator::own_part`].
    ///
    /// On one node, NCCL carries out all-reduces, reductions, broadcasts, reduce-scatters and all-gathers. Other operations, and those
    /// over several nodes except all-reduces, go through the host.
    ///
    /// ```no_run
    /// use unisono::Operation;
    ///
    /// # fn main() -> unisono::Result<()> {
    /// # let mut comm = unisono::Unisono::builder().threads(1)?.remove(0);
    /// let stream = comm.device()?.default_stream();
    /// let mut weights = comm.alloc_device::<f32>(1 << 20)?;
    /// comm.run_device(Operation::Broadcast { root: 0 }, None, &mut weights, &stream)?;
    /// comm.synchronize(&stream)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_device`]. [`CallBuilder::counts`](crate::CallBuilder::counts) of a call that NCCL does not carry out
    /// are refused, too.
    ///
    /// # Panics
    /// If the root is not a rank, or an all-to-all cannot be divided among the ranks.
    pub fn run_device<T: Element>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: &mut impl DevicePtrMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Ran> {
        let call = self.checked::<T>(operation, op, buffer.len());
        let choice = self.choice_of_call()?.clone();
        self.run_on_device(&choice, &call, buffer, stream)
    }

    /// Orders the streams of all ranks: work that is queued on `stream` from now on begins when the work that each rank has queued
    /// on its own stream is done. The host does not wait. It is an all-reduce of one byte.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_device`].
    pub fn barrier_device(&mut self, stream: &Arc<CudaStream>) -> Result<Ran> {
        let call = Call::all_reduce(DType::U8, ReduceOp::Max, 1);
        let mut options = self.per_call.options.clone();
        options.parts = None;
        self.on_gpu(stream.context(), |engine, gpu| {
            let mut token = gpu.take_token()?;
            let ran = on_any_thread(stream, &gpu.aside(), |stream| {
                let device_call = DeviceCall { call: &call, options: &options, stream };
                lend(&mut token, stream, |span| engine.run_on_gpu(gpu, &Choice::Auto, device_call, span))
            });
            gpu.token = Some(token);
            ran
        })
    }

    pub(crate) fn run_on_device<T: Element>(
        &mut self,
        choice: &Choice,
        call: &Call,
        buffer: &mut impl DevicePtrMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Ran> {
        let options = self.per_call.options.clone();
        self.on_gpu(stream.context(), |engine, gpu| {
            on_any_thread(stream, &gpu.aside(), |stream| {
                let device_call = DeviceCall { call, options: &options, stream };
                lend(buffer, stream, |span| engine.run_on_gpu(gpu, choice, device_call, span))
            })
        })
    }

    /// Starts the non-blocking form of [`Communicator::all_reduce_device`]: it starts after the work now on `stream`, and runs on
    /// the communication thread and a separate stream. [`DeviceRequest::wait`] returns the array. Several may be in flight, as for
    /// [`Communicator::all_reduce_async`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`]; [`Error::Cuda`](crate::Error::Cuda) if the GPU is not usable.
    /// [`DeviceRequest::wait`] returns later errors.
    pub fn all_reduce_device_async<T: Element, B>(
        &mut self,
        buffer: B,
        op: ReduceOp,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceRequest<B>>
    where
        B: DevicePtrMut<T> + Send + 'static,
    {
        self.check_in_flight()?;
        let (choice, options) = (self.choice_of_call()?.clone(), self.per_call.options.clone());
        let call = self.checked::<T>(Operation::AllReduce, Some(op), buffer.len());
        let context = Arc::clone(stream.context());
        let begun = gpu::moment(stream)?;
        let done = Arc::new(context.new_event(None).map_err(cuda("an event"))?);
        let event = Arc::clone(&done);
        let request = self.engine_owner.send(buffer, move |engine, buffer| {
            engine.with_gpu(&context, options.timeout, |engine, gpu| {
                let aside = gpu.aside();
                aside.wait(&begun).map_err(cuda("order of streams"))?;
                let device_call = DeviceCall { call: &call, options: &options, stream: &aside };
                let ran = lend(buffer, &aside, |span| engine.run_on_gpu(gpu, &choice, device_call, span));
                // Recorded even if the call failed, so that the array does not return to its own stream too early.
                let ordered = event.record(&aside).and_then(|()| buffer.stream().wait(&event));
                ran.and(ordered.map_err(cuda("order of streams")))
            })
        })?;
        Ok(DeviceRequest { request, done })
    }

    /// Waits until the work now queued on a stream is done.
    ///
    /// # Errors
    /// After the timeout of [`Communicator::set_timeout`], since a GPU that waits for a missing rank would wait for ever:
    /// [`Error::Timeout`](crate::Error::Timeout) with the rank that has not made a call, or
    /// [`Error::Overdue`](crate::Error::Overdue) if all ranks have made theirs. [`Error::Left`](crate::Error::Left) if that rank
    /// has left, [`Error::Aborted`](crate::Error::Aborted) if a rank has failed, and [`Error::Failed`](crate::Error::Failed) if
    /// NCCL or CUDA reports an error.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let options = self.per_call.options.clone();
        self.on_gpu(stream.context(), |engine, gpu| engine.synchronize(gpu, stream, &options))
    }

    /// Describes how data move between GPUs: by NCCL inside a node, or through the host, with the reason. All ranks call it: it
    /// carries out the set-up of the first all-reduce.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) on all ranks if one has no usable GPU, with its reason; the
    /// communicator remains usable. Otherwise as [`Communicator::all_reduce_device`].
    pub fn device_route(&mut self) -> Result<String> {
        let device = self.device();
        let rank = self.rank();
        let own = device.as_ref().map(drop).map_err(|why| format!("rank {rank}: {why}"));
        gather_results(&mut self.as_bootstrap("device"), &own)?.map_err(Error::Unsupported)?;
        self.on_gpu(&device?, |_, gpu| Ok(gpu.route()))
    }

    pub(crate) fn on_gpu<R>(
        &mut self,
        context: &Arc<CudaContext>,
        work: impl FnOnce(&mut Engine, &mut Gpu) -> Result<R>,
    ) -> Result<R> {
        let timeout = self.per_call.options.timeout;
        self.engine_owner.engine().with_gpu(context, timeout, work)
    }
}

/// A non-blocking all-reduce of an array in GPU memory. It owns the array until the call is done; dropping it drops the array,
/// and the collective still runs.
///
/// Unlike [`Request`], its `wait` orders a stream: it returns while the GPU may still be working.
#[derive(Debug)]
pub struct DeviceRequest<B> {
    request: Request<B>,
    done: Arc<CudaEvent>,
}

impl<B> DeviceRequest<B> {
    /// Returns the host's part of the call, whose times [`Request::flight`] gives.
    pub fn on_host(&self) -> &Request<B> {
        &self.request
    }

    /// Orders `stream` after the all-reduce and returns the array. Waits until the host's part is done; the GPU may still be
    /// working.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_device`]. The array is then lost, even if the communicator is not.
    pub fn wait(self, stream: &Arc<CudaStream>) -> Result<B> {
        let buffer = self.request.wait()?;
        stream.wait(&self.done).map_err(cuda("order of streams"))?;
        Ok(buffer)
    }
}
