//! Gradients in buckets of device memory.
//!
//! Every access to a bucket is enqueued on candle's stream, after the computation of a gradient and before its use. The all-reduce runs between the
//! two, on the communicator's streams.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Device, Storage, Tensor};
use unisono::cudarc::driver::{CudaSlice, CudaStream, DriverError};

use crate::error::failed as framework;
use unisono::{Communicator, DeviceRequest, Error, ReduceOp, Registered, Request};
use unisono_train::internals::{Ledger, Place};
use unisono_train::{
    BucketSettings, BucketSize, Fill, Gradients, LossSums, Parameter, Pass, ReplicaError, Sums, TrainError,
};

/// The buckets of one rank's GPU, the counterpart of [`Buckets`](unisono_train::Buckets) on the host.
pub(super) struct DeviceBuckets {
    device: CudaDevice,
    /// Candle's stream.
    stream: Arc<CudaStream>,
    pub(super) ledger: Ledger,
    buckets: Vec<Bucket>,
    /// The sums other than gradients. They are computed and needed on the host, so they are reduced there.
    aside: Aside,
    has_others: bool,
    /// The gradients of this step's earlier passes, by the index of the parameter.
    waiting: Vec<Option<Tensor>>,
    /// The summed gradients of each bucket, from completion to the end of the step.
    pub(super) landed: Vec<Tensor>,
    /// The time for which this rank has waited for the buckets and sums of the step.
    pub(super) exposed: Duration,
}

/// Consecutive gradients, held here or by an all-reduce.
struct Bucket {
    here: Option<CudaSlice<f32>>,
    request: Option<DeviceRequest<CudaSlice<f32>>>,
}

/// The values of [`Sums`], held here or by an all-reduce.
struct Aside {
    here: Option<Registered<f32>>,
    request: Option<Request<Registered<f32>>>,
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> TrainError {
    move |cause| Error::Cuda { what, cause }.into()
}

impl DeviceBuckets {
    /// Creates buckets for the gradients of these parameters, whose model is on `device`.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is not on this rank's GPU. Errors of the driver.
    pub(super) fn new(
        comm: &mut Communicator,
        device: &CudaDevice,
        parameters: &[Parameter],
        settings: &BucketSettings,
    ) -> Result<Self, TrainError> {
        let stream = device.cuda_stream();
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
        Ok(Self {
            device: device.clone(),
            stream,
            ledger,
            buckets,
            aside: Aside { here: Some(comm.alloc(Sums::COUNT)?), request: None },
            has_others: comm.ranks() > 1,
            waiting: vec![None; parameters.len()],
            landed: Vec::new(),
            exposed: Duration::ZERO,
        })
    }

    /// Starts a pass that fills the buckets, as [`Buckets::fill`](unisono_train::Buckets::fill) does on the host.
    ///
    /// # Panics
    /// If buckets of the previous step are still in flight.
    pub(super) fn fill<'a>(&'a mut self, comm: &'a mut Communicator, pass: Pass) -> Filling<'a> {
        let is_back = self.buckets.iter().all(|bucket| bucket.here.is_some());
        assert!(is_back, "a bucket of the step before is on its way");
        self.ledger.begin(pass);
        if pass.number == 0 {
            self.waiting.fill(None);
            self.exposed = Duration::ZERO;
        }
        Filling { buckets: self, comm, failure: None }
    }

    /// Waits for the sums over all ranks other than gradients, and returns them.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn sums(&mut self) -> Result<Sums, TrainError> {
        if let Some(request) = self.aside.request.take() {
            let waits_since = Instant::now();
            self.aside.here = Some(request.wait()?);
            self.exposed += waits_since.elapsed();
        }
        Ok(Sums::read(self.aside.here.as_ref().expect("the sums are back")))
    }

    /// Waits for all buckets.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn complete(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
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
            let copy = self.stream.clone_dtod(memory).map_err(failed("copying a bucket"))?;
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(copy, self.device.clone()));
            self.landed.push(Tensor::from_storage(storage, memory.len(), BackpropOp::none(), false));
        }
        self.exposed += waits_since.elapsed();
        Ok(())
    }

    /// Returns the gradient of a trained parameter, summed over all ranks.
    ///
    /// # Errors
    /// An error of candle.
    ///
    /// # Panics
    /// If the buckets have not landed.
    pub(super) fn gradient(&self, index: usize) -> Result<Tensor, TrainError> {
        let Place { bucket, ref range } = *self.ledger.place(index);
        let shape = &self.ledger.parameters[index].shape[..];
        let gradient = self.landed[bucket].narrow(0, range.start, range.len());
        gradient.and_then(|gradient| gradient.reshape(shape)).map_err(framework)
    }

    fn send_sums(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        let mut sums = self.aside.here.take().expect("the sums are back");
        self.ledger.own.write(&mut sums);
        if self.has_others {
            self.aside.request = Some(comm.call().label("sums").all_reduce_async(sums, ReduceOp::Sum)?);
        } else {
            self.aside.here = Some(sums);
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
            (Some(earlier), Some(gradient)) => Some((earlier + gradient).map_err(framework)?.detach()),
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
            return self.stream.memset_zeros(&mut target).map_err(failed("filling a bucket with zeros"));
        };
        let (storage, layout) = gradient.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            return Err(not_as_expected(&self.ledger.parameters[index].name, gradient));
        };
        assert_eq!(end - start, range.len(), "a gradient has as many values as its parameter");
        let source = storage.as_cuda_slice::<f32>().map_err(framework)?.slice(start..end);
        self.stream.memcpy_dtod(&source, &mut target).map_err(failed("copying a gradient into its bucket"))
    }

    /// Launches all full buckets that are not yet launched, in order.
    fn launch(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        while let Some(full) = self.ledger.full() {
            if self.has_others {
                let bucket = &mut self.buckets[full];
                let memory = bucket.here.take().expect("the bucket is not yet launched");
                bucket.request = Some(comm.all_reduce_device_async(memory, ReduceOp::Sum, &self.stream)?);
            }
            self.ledger.launched += 1;
        }
        Ok(())
    }
}

fn not_as_expected(name: &str, gradient: &Tensor) -> TrainError {
    TrainError::Replica(
        format!("expected the gradient of {name} on a GPU and without gaps, not {gradient:?}").into(),
    )
}

/// Receives the gradients of one pass. [`Filling::end`] ends it.
pub(super) struct Filling<'a> {
    buckets: &'a mut DeviceBuckets,
    comm: &'a mut Communicator,
    /// The error that prevented a gradient from being reduced, if any.
    pub(super) failure: Option<TrainError>,
}

impl Filling<'_> {
    /// Ends the pass, as `Filling::end` does on the host.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn end(mut self) -> Result<Vec<usize>, TrainError> {
        if self.buckets.ledger.weighed.is_none() {
            self.record_loss(LossSums::default());
        }
        let without = self.buckets.ledger.not_put();
        for &index in &without {
            self.attempt(|buckets, comm| buckets.put(comm, index, None));
        }
        self.failure.map_or(Ok(without), Err)
    }

    fn attempt(&mut self, act: impl FnOnce(&mut DeviceBuckets, &mut Communicator) -> Result<(), TrainError>) {
        if self.failure.is_none() {
            self.failure = act(self.buckets, self.comm).err();
        }
    }
}

impl Gradients for Filling<'_> {
    fn record_loss(&mut self, tally: LossSums) {
        self.buckets.ledger.record_loss(tally);
        if self.buckets.ledger.pass.is_last() {
            self.attempt(DeviceBuckets::send_sums);
        }
    }

    /// Serves a replica that is on a GPU but has its gradients on the host.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let parameter = &self.buckets.ledger.parameters[index];
        let mut values = vec![0.0; parameter.count()];
        write(&mut values, Fill::Set);
        let device = Device::Cuda(self.buckets.device.clone());
        let gradient = Tensor::from_vec(values, &parameter.shape[..], &device);
        self.attempt(|buckets, comm| buckets.put(comm, index, Some(&gradient.map_err(framework)?)));
    }

    fn put_on_device(&mut self, index: usize, gradient: &dyn Any) -> Result<bool, ReplicaError> {
        let Some(gradient) = gradient.downcast_ref() else { return Ok(false) };
        self.attempt(|buckets, comm| buckets.put(comm, index, Some(gradient)));
        // Ends the pass early. Its end reports the failure.
        if self.failure.is_some() { Err("a gradient could not be reduced".into()) } else { Ok(true) }
    }
}
