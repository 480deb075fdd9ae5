//! Training on a GPU: gradients and parameters stay in its memory. Each gradient is copied into its bucket as soon as the backward pass has computed
//! it. Full buckets are all-reduced during that pass, and the update uses candle operations.
//!
//! Operations are only enqueued on candle's stream, so the host blocks where the times of a step are measured. Every access to a bucket is enqueued
//! there, after the computation of a gradient and before its use. The all-reduce runs between the two, on the communicator's streams.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Storage, Tensor};
use unisono::cudarc::driver::{CudaSlice, CudaStream, DriverError};

use crate::error::failed;
use crate::tensors::TensorOptimizer;
use unisono::{Communicator, DeviceRequest, Error, ReduceOp};
use unisono_train::internals::{Backend, CommBuffer, Ledger, Place, Run, Update, Values, refusal};
use unisono_train::optimizer::{Factors, Optimizer, OptimizerSettings, Restore};
use unisono_train::{
    BucketSettings, BucketSize, Fill, Gradients, LossSums, Parameter, Pass, ReplicaError, Sums, Times,
    TrainError,
};

pub(crate) struct Gpu {
    device: Device,
    cuda: CudaDevice,
    /// Candle's stream.
    stream: Arc<CudaStream>,
    ledger: Ledger,
    buckets: Vec<Bucket>,
    /// The sums other than gradients. They are computed and needed on the host, so they are reduced there.
    aside: CommBuffer<f32>,
    /// The gradients of this step's earlier passes, by the index of the parameter.
    waiting: Vec<Option<Tensor>>,
    /// The summed gradients of each bucket, from completion to the end of the step.
    landed: Vec<Tensor>,
    /// The time for which this rank has waited for the buckets and sums of the step.
    exposed: Duration,
    optimizer: TensorOptimizer,
    /// The replica's values, in place.
    values: Vec<Tensor>,
    /// A copy of the optimizer from the last save or restore of its state.
    optimizer_on_host: Optimizer,
}

/// A bucket, held here or by an all-reduce.
struct Bucket {
    here: Option<CudaSlice<f32>>,
    request: Option<DeviceRequest<CudaSlice<f32>>>,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("device", &self.device).finish_non_exhaustive()
    }
}

fn driver_failed(what: &'static str) -> impl Fn(DriverError) -> TrainError {
    move |cause| Error::Cuda { what, cause }.into()
}

impl Gpu {
    /// Returns the GPU that holds these parameters, or an error if it does not support these settings or this optimizer, or is another rank's.
    pub(crate) fn new(
        comm: &mut Communicator,
        (parameters, values): (&[Parameter], &[Tensor]),
        optimizer: &OptimizerSettings,
        settings: &BucketSettings,
    ) -> Result<Self, TrainError> {
        if let Some(why) = refusal(settings) {
            return Err(TrainError::Setting(why));
        }
        let device = values[0].device().clone();
        let cuda = device.as_cuda_device().map_err(failed)?.clone();
        let stream = cuda.cuda_stream();
        let (found, expected) = (stream.context().ordinal(), comm.device()?.ordinal());
        if found != expected {
            return Err(TrainError::Setting(format!(
                "the model is on GPU {found}, and rank {} has GPU {expected}: build it on Communicator::device()",
                comm.rank()
            )));
        }
        let ledger = Ledger::new(parameters, settings, BucketSize::usual_of(settings));
        let mut buckets = Vec::new();
        for &count in &ledger.plan.counts {
            let memory = comm.alloc_device::<f32>(count)?;
            // Either stream may fill it with zeros, and candle's stream may write to it afterwards.
            comm.synchronize(memory.stream())?;
            buckets.push(Bucket { here: Some(memory), request: None });
        }
        let factors: Vec<Factors> =
            parameters.iter().map(|found| (optimizer.factors)(&found.name, &found.shape)).collect();
        let count = |found: &Parameter| if found.is_trained { found.count() } else { 0 };
        let on_host = parameters.iter().map(count).zip(factors.iter().copied());
        Ok(Self {
            device,
            cuda,
            stream,
            ledger,
            buckets,
            aside: CommBuffer::new(comm, None, Sums::COUNT, true)?,
            waiting: vec![None; parameters.len()],
            landed: Vec::new(),
            exposed: Duration::ZERO,
            values: values.to_vec(),
            optimizer_on_host: Optimizer::new(optimizer.clone(), on_host)?,
            optimizer: TensorOptimizer::new(optimizer.clone(), factors).map_err(TrainError::Setting)?,
        })
    }

    /// Returns the gradient of a trained parameter, summed over all ranks. The buckets have landed.
    fn gradient(&self, index: usize) -> Result<Tensor, TrainError> {
        let Place { bucket, ref range } = *self.ledger.place(index);
        let shape = &self.ledger.parameters[index].shape[..];
        let gradient = self.landed[bucket].narrow(0, range.start, range.len());
        gradient.and_then(|gradient| gradient.reshape(shape)).map_err(failed)
    }

    fn send_sums(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        self.ledger.own.write(self.aside.values_mut());
        if comm.ranks() > 1 {
            self.aside.lend(|sums| comm.call().label("sums").all_reduce_async(sums, ReduceOp::Sum))?;
        }
        Ok(())
    }

    /// Adds a gradient, if there is one, to those of earlier passes. In the last pass, copies the sum into its bucket.
    fn put(
        &mut self,
        comm: &mut Communicator,
        index: usize,
        gradient: Option<&Tensor>,
    ) -> Result<(), TrainError> {
        let place = self.ledger.put(index);
        let sum = match (self.waiting[index].take(), gradient) {
            (Some(earlier), Some(gradient)) => Some((earlier + gradient).map_err(failed)?.detach()),
            (earlier, gradient) => earlier.or_else(|| gradient.map(Tensor::detach)),
        };
        if self.ledger.pass.is_last() {
            self.write(index, place, sum.as_ref())?;
            return self.launch(comm);
        }
        self.waiting[index] = sum;
        Ok(())
    }

    /// Copies a gradient into its bucket, or zeros if there is none.
    fn write(&mut self, index: usize, place: Place, gradient: Option<&Tensor>) -> Result<(), TrainError> {
        let Place { bucket, range } = place;
        if range.is_empty() {
            return Ok(());
        }
        let memory = self.buckets[bucket].here.as_mut().expect("the bucket is not yet launched");
        let mut target = memory.slice_mut(range.clone());
        let Some(gradient) = gradient else {
            let zeroed = self.stream.memset_zeros(&mut target);
            return zeroed.map_err(driver_failed("filling a bucket with zeros"));
        };
        let (storage, layout) = gradient.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            let name = &self.ledger.parameters[index].name;
            let why = format!("expected the gradient of {name} on a GPU and without gaps, not {gradient:?}");
            return Err(TrainError::Replica(why.into()));
        };
        assert_eq!(end - start, range.len(), "a gradient has as many values as its parameter");
        let source = storage.as_cuda_slice::<f32>().map_err(failed)?.slice(start..end);
        let copied = self.stream.memcpy_dtod(&source, &mut target);
        copied.map_err(driver_failed("copying a gradient into its bucket"))
    }

    /// Launches all full buckets that are not yet launched, in order.
    fn launch(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        while let Some(full) = self.ledger.full() {
            if comm.ranks() > 1 {
                let bucket = &mut self.buckets[full];
                let memory = bucket.here.take().expect("the bucket is not yet launched");
                bucket.request = Some(comm.all_reduce_device_async(memory, ReduceOp::Sum, &self.stream)?);
            }
            self.ledger.launched += 1;
        }
        Ok(())
    }
}

impl Backend for Gpu {
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        let is_back = self.buckets.iter().all(|bucket| bucket.here.is_some());
        assert!(is_back, "a bucket of the step before is on its way");
        self.ledger.begin(pass);
        if pass.number == 0 {
            self.waiting.fill(None);
            self.exposed = Duration::ZERO;
        }
        let mut filling = Filling { gpu: self, comm, failure: None };
        match run(&mut filling) {
            Ok(()) => filling.end(),
            // The cause of a failed `put` is more precise than the error at the end of the pass.
            Err(error) => Err(filling.failure.unwrap_or_else(|| error.into())),
        }
    }

    /// Passes do not wait for other ranks, so this always returns.
    fn wait_for_passes(&self) -> Result<(), TrainError> {
        self.device.synchronize().map_err(failed)
    }

    fn sums(&mut self) -> Result<Sums, TrainError> {
        let waits_since = Instant::now();
        self.aside.complete()?;
        self.exposed += waits_since.elapsed();
        Ok(Sums::read(self.aside.values()))
    }

    /// Waits for all gradients at once.
    fn complete(&mut self, comm: &mut Communicator, _: usize) -> Result<(), TrainError> {
        if self.landed.len() == self.buckets.len() {
            return Ok(());
        }
        let waits_since = Instant::now();
        for bucket in &mut self.buckets {
            if let Some(request) = bucket.request.take() {
                bucket.here = Some(request.wait(&self.stream)?);
            }
        }
        // Wait here, and not where candle reads a value: this wait has a deadline if another rank does not arrive.
        comm.synchronize(&self.stream)?;
        for bucket in &self.buckets {
            let memory = bucket.here.as_ref().expect("the bucket is back");
            // The next pass may write to the bucket as soon as this copy is queued.
            let copy = self.stream.clone_dtod(memory).map_err(driver_failed("copying a bucket"))?;
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(copy, self.cuda.clone()));
            self.landed.push(Tensor::from_storage(storage, memory.len(), BackpropOp::none(), false));
        }
        self.exposed += waits_since.elapsed();
        Ok(())
    }

    /// Computes in `f64`, as on the host.
    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError> {
        let gradient = self.gradient(index)?;
        let sum = || gradient.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar();
        sum().map_err(failed)
    }

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    fn update_parameter(&mut self, _: Values<'_>, index: usize, by: Update) -> Result<(), TrainError> {
        let gradient = self.gradient(index)?;
        self.optimizer.update(index, &self.values[index], &gradient, by.scale, by.rate).map_err(failed)
    }

    fn finish(&mut self, comm: &mut Communicator, _: Values<'_>) -> Result<(), TrainError> {
        self.complete(comm, 0)?;
        self.device.synchronize().map_err(failed)?;
        self.landed.clear();
        Ok(())
    }

    /// The GPU does not report hidden communication.
    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let exposed = self.exposed;
        Times { compute: passes, exposed, update: rest.saturating_sub(exposed), ..Times::default() }
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        self.optimizer.save(&mut self.optimizer_on_host).map_err(failed)?;
        Ok(&self.optimizer_on_host)
    }

    fn restore_optimizer(&mut self, steps: u64, write: Restore<'_>) -> Result<(), TrainError> {
        self.optimizer_on_host.restore(steps, write)?;
        self.optimizer.load(&self.optimizer_on_host, &self.values).map_err(failed)
    }

    fn is_gpu(&self) -> bool {
        true
    }
}

/// Receives the gradients of one pass. [`Filling::end`] ends it.
struct Filling<'a> {
    gpu: &'a mut Gpu,
    comm: &'a mut Communicator,
    /// The error that prevented a gradient from being reduced, if any.
    failure: Option<TrainError>,
}

impl Filling<'_> {
    /// Ends the pass, as `Filling::end` does on the host.
    fn end(mut self) -> Result<Vec<usize>, TrainError> {
        if self.gpu.ledger.weighed.is_none() {
            self.record_loss(LossSums::default());
        }
        let without = self.gpu.ledger.not_put();
        for &index in &without {
            self.attempt(|gpu, comm| gpu.put(comm, index, None));
        }
        self.failure.map_or(Ok(without), Err)
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Gpu, &mut Communicator) -> Result<(), TrainError>) {
        if self.failure.is_none() {
            self.failure = act(self.gpu, self.comm).err();
        }
    }
}

impl Gradients for Filling<'_> {
    fn record_loss(&mut self, tally: LossSums) {
        self.gpu.ledger.record_loss(tally);
        if self.gpu.ledger.pass.is_last() {
            self.attempt(Gpu::send_sums);
        }
    }

    /// Serves a replica that is on a GPU but has its gradients on the host.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let parameter = &self.gpu.ledger.parameters[index];
        let mut values = vec![0.0; parameter.count()];
        write(&mut values, Fill::Set);
        let gradient = Tensor::from_vec(values, &parameter.shape[..], &self.gpu.device);
        self.attempt(|gpu, comm| gpu.put(comm, index, Some(&gradient.map_err(failed)?)));
    }

    fn put_on_device(&mut self, index: usize, gradient: &dyn Any) -> Result<bool, ReplicaError> {
        let Some(gradient) = gradient.downcast_ref() else { return Ok(false) };
        self.attempt(|gpu, comm| gpu.put(comm, index, Some(gradient)));
        // Ends the pass early. Its end reports the failure.
        if self.failure.is_some() { Err("a gradient could not be reduced".into()) } else { Ok(true) }
    }
}
