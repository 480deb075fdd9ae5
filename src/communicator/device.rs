//! Arrays in the memory of GPUs, as a user sees them.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut, DeviceRepr, ValidAsZeroBits,
};

use super::Communicator;
use crate::call::{Call, Ran};
use crate::collective::{DeviceCall, Engine};
use crate::device::{self, Gpu};
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::gpu::{self, cuda, lend};
use crate::kernels::ReduceOp;
use crate::request::Request;
use crate::select::Choice;

impl Communicator {
    /// This rank's GPU: the ranks of a node take turns at those that they see (`CUDA_VISIBLE_DEVICES`), by their local ranks.
    ///
    /// Every rank may call it by itself, at any time. Arrays on this GPU may as well come from elsewhere: a context of cudarc's with
    /// the same ordinal names the same GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if there is no driver or no GPU, [`Error::Cuda`](crate::Error::Cuda) if it
    /// cannot be used.
    pub fn device(&self) -> Result<Arc<CudaContext>> {
        if let Some(context) = self.device.get() {
            return Ok(Arc::clone(context));
        }
        let context = gpu::context(self.local_rank)?;
        Ok(Arc::clone(self.device.get_or_init(|| context)))
    }

    /// An array of `count` zeros on [this rank's GPU](Communicator::device).
    ///
    /// # Errors
    /// As [`Communicator::device`].
    pub fn alloc_device<T: Element + DeviceRepr + ValidAsZeroBits>(
        &self,
        count: usize,
    ) -> Result<CudaSlice<T>> {
        let stream = self.device()?.default_stream();
        let array = if count == 0 { gpu::nothing(&stream) } else { stream.alloc_zeros(count) };
        array.map_err(cuda("memory on the GPU"))
    }

    /// As [`Communicator::all_reduce`], of an array on a GPU: a [`CudaSlice`] or a part of one.
    ///
    /// It is reduced after what is on `stream` now, and before what will be: the call may return while the GPU still works, and the
    /// host waits for no more than it must. [`Communicator::synchronize`] waits for the rest, with a deadline. All arrays of a rank
    /// are on one GPU; the first call sets up NCCL, and takes a second or so.
    ///
    /// ```no_run
    /// use unisono::ReduceOp;
    ///
    /// # fn main() -> unisono::Result<()> {
    /// # let mut comm = unisono::Communicator::threads(1)?.remove(0);
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
    /// As [`Communicator::all_reduce`]; [`Error::Overdue`](crate::Error::Overdue) if the GPU does not come to an end, and
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the array is on another GPU than those before, or what was chosen by
    /// name cannot be had; the call is then as good as not made.
    pub fn all_reduce_device<T: Element>(
        &mut self,
        buffer: &mut impl DevicePtrMut<T>,
        op: ReduceOp,
        stream: &Arc<CudaStream>,
    ) -> Result<Ran> {
        let call = Call::all_reduce(T::DTYPE, op, buffer.len());
        let choice = self.choice_of_call()?.clone();
        self.run_on_device(&choice, &call, buffer, stream)
    }

    /// Carries out a call by what a choice names.
    pub(crate) fn run_on_device<T: Element>(
        &mut self,
        choice: &Choice,
        call: &Call,
        buffer: &mut impl DevicePtrMut<T>,
        stream: &Arc<CudaStream>,
    ) -> Result<Ran> {
        let options = self.per_call.options;
        let asked = DeviceCall { call, options: &options, stream };
        self.on_gpu(stream.context(), |engine, gpu| {
            lend(buffer, stream, |span| engine.run_on_gpu(gpu, choice, asked, span))
        })
    }

    /// Begins an all-reduce of an array on a GPU that goes on beside what this thread and `stream` do next: after what is on `stream`
    /// now, on the communication thread and on a stream of its own. The array comes back from [`DeviceRequest::wait`]. As for
    /// [`Communicator::all_reduce_async`], several may be in flight.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`]; [`Error::Cuda`](crate::Error::Cuda) if the GPU cannot be used. What goes wrong later,
    /// [`DeviceRequest::wait`] says.
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
        let (choice, options) = (self.choice_of_call()?.clone(), self.per_call.options);
        let call = Call::all_reduce(T::DTYPE, op, buffer.len());
        let context = Arc::clone(stream.context());
        let begun = gpu::moment(stream)?;
        let done = Arc::new(context.new_event(None).map_err(cuda("an event"))?);
        let event = Arc::clone(&done);
        let request = self.seat.send(buffer, move |engine, buffer| {
            engine.with_gpu(&context, |engine, gpu| {
                let aside = gpu.aside();
                aside.wait(&begun).map_err(cuda("order of streams"))?;
                let asked = DeviceCall { call: &call, options: &options, stream: &aside };
                let ran = lend(buffer, &aside, |span| engine.run_on_gpu(gpu, &choice, asked, span));
                // Even if it failed, so that the array is not given back to its own stream too early.
                let ordered = event.record(&aside).and_then(|()| buffer.stream().wait(&event));
                ran.and(ordered.map_err(cuda("order of streams")))
            })
        })?;
        Ok(DeviceRequest { request, done })
    }

    /// Waits until all that is on a stream now is done.
    ///
    /// # Errors
    /// [`Error::Overdue`](crate::Error::Overdue) after the time that [`Communicator::set_timeout`] sets: a rank whose GPU waits for
    /// one that has ended would wait for ever. [`Error::Failed`](crate::Error::Failed) if NCCL or CUDA say that something went
    /// wrong.
    pub fn synchronize(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let options = self.per_call.options;
        self.on_gpu(stream.context(), |engine, gpu| {
            let reached = gpu::moment(stream)?;
            let is_over = || reached.try_is_complete().map_err(cuda("work on the GPU"));
            let (what, deadlines) = ("what is queued on the GPU", engine.deadlines(&options));
            device::wait_for(is_over, what, (&deadlines, &engine.status), || gpu.check_nccl())
        })
    }

    /// How arrays get from GPU to GPU, in words: by NCCL inside of nodes, or through the host, and then why. Called by all ranks: it
    /// sets up what the first all-reduce would.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on all ranks if one has no GPU to use, with what it says; the communicator is then as good as before.
    /// Otherwise as [`Communicator::all_reduce_device`].
    pub fn device_route(&mut self) -> Result<String> {
        let device = self.device();
        let why = device.as_ref().map_or_else(ToString::to_string, |_| String::new());
        let all = self.gather_bytes(why.as_bytes())?;
        if let Some(first) = all.iter().position(|why| !why.is_empty()) {
            let why = String::from_utf8_lossy(&all[first]);
            return Err(Error::Unsupported(format!("rank {first}: {why}")));
        }
        self.on_gpu(&device?, |_, gpu| Ok(gpu.route()))
    }

    /// Lets `work` use this rank's GPU, which all ranks set up together before the first time.
    pub(crate) fn on_gpu<R>(
        &mut self,
        context: &Arc<CudaContext>,
        work: impl FnOnce(&mut Engine, &mut Gpu) -> Result<R>,
    ) -> Result<R> {
        self.seat.engine().with_gpu(context, work)
    }
}

/// An all-reduce of an array on a GPU in flight, which owns the array until it is done. To drop it is to give up the array: the
/// collective goes on all the same.
///
/// It is a type of its own beside [`Request`] since its wait is another: it orders a stream, and the host comes back while the
/// GPU may still work.
#[derive(Debug)]
pub struct DeviceRequest<B> {
    request: Request<B>,
    done: Arc<CudaEvent>,
}

impl<B> DeviceRequest<B> {
    /// The part that this rank's threads have in it: [`Request::flight`] says when that was.
    pub fn on_host(&self) -> &Request<B> {
        &self.request
    }

    /// Has `stream` go on after the all-reduce, and gives back the array. The host waits until its part is done, the GPU may still
    /// work.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_device`]. The array is then lost, also where the communicator is not.
    pub fn wait(self, stream: &Arc<CudaStream>) -> Result<B> {
        let buffer = self.request.wait()?;
        stream.wait(&self.done).map_err(cuda("order of streams"))?;
        Ok(buffer)
    }
}
