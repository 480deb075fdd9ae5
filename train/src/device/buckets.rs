//! Gradients in buckets of device memory.
//!
//! Every access to a bucket is queued on candle's stream: after the computation of a gradient, and before its use. The
//! all-reduce, on the communicator's streams, runs between the two.

use std::sync::Arc;

use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, Storage, Tensor, bail};
use unisono::cudarc::driver::{CudaSlice, CudaStream, DriverError};

use crate::buckets::{BucketSettings, Parcel, Pass, Place, Plan, Sums, Way};
use crate::error::TrainError;
use crate::replica::{Fill, Gradients, Parameter, Tally};
use unisono::{Communicator, DeviceRequest, Error, ReduceOp};

/// The buckets of one rank's GPU, as [`Buckets`](crate::Buckets) are on the host.
pub(super) struct DeviceBuckets {
    device: CudaDevice,
    /// Candle's.
    stream: Arc<CudaStream>,
    parameters: Vec<Parameter>,
    names: Vec<String>,
    plan: Plan,
    buckets: Vec<Bucket>,
    /// The sums besides gradients: they are known and needed on the host, so they are reduced there.
    aside: Parcel<f32>,
    own: Sums,
    /// The gradients of earlier passes of this step, by the index of the parameter.
    waiting: Vec<Option<Tensor>>,
    has_others: bool,
    launched: usize,
}

/// Some gradients, one after the other: here, or in an all-reduce.
struct Bucket {
    here: Option<CudaSlice<f32>>,
    request: Option<DeviceRequest<CudaSlice<f32>>>,
    /// How many gradients are not yet complete.
    missing: usize,
}

fn failed(what: &'static str) -> impl Fn(DriverError) -> TrainError {
    move |cause| Error::Cuda { what, cause }.into()
}

impl DeviceBuckets {
    /// Buckets for the gradients of these parameters, whose model is on `device`.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if the model is not on this rank's GPU; what the driver objects to.
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
        let plan = Plan::new(parameters, settings.first_bucket_bytes, settings.bucket_bytes);
        let mut buckets = Vec::new();
        for &count in &plan.counts {
            let memory = comm.alloc_device::<f32>(count)?;
            // Whichever stream it is filled with zeros on: candle's may write to it from now on.
            comm.synchronize(memory.stream())?;
            buckets.push(Bucket { here: Some(memory), request: None, missing: 0 });
        }
        Ok(Self {
            device: device.clone(),
            stream,
            names: parameters.iter().map(|parameter| parameter.name.clone()).collect(),
            parameters: parameters.to_vec(),
            waiting: vec![None; parameters.len()],
            aside: Parcel::new(comm, None, Sums::COUNT)?,
            own: Sums::default(),
            has_others: comm.ranks() > 1,
            launched: buckets.len(),
            plan,
            buckets,
        })
    }

    /// Starts a pass that fills the buckets, as [`Buckets::fill`](crate::Buckets::fill).
    ///
    /// # Panics
    /// If buckets of the previous step are still in flight.
    pub(super) fn fill<'a>(&'a mut self, comm: &'a mut Communicator, pass: Pass) -> Filling<'a> {
        let is_back = self.buckets.iter().all(|bucket| bucket.here.is_some());
        assert!(is_back, "a bucket of the step before is on its way");
        if pass.number == 0 {
            self.own = Sums::default();
            self.waiting.fill(None);
            self.launched = 0;
        }
        for (bucket, members) in self.buckets.iter_mut().zip(&self.plan.members) {
            bucket.missing = members.len();
        }
        let is_whole = vec![false; self.parameters.len()];
        Filling { buckets: self, comm, pass, is_whole, is_weighed: false, failure: None }
    }

    /// The sums over all ranks besides gradients. Waits for them.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn sums(&mut self) -> Result<Sums, TrainError> {
        self.aside.land()?;
        Ok(Sums::read(self.aside.values()))
    }

    /// This rank's own sums of this step.
    pub(super) fn own_tally(&self) -> Tally {
        self.own.tally
    }

    /// The gradients of all trained parameters, summed over all ranks, by the index of their parameter. Waits for all
    /// buckets.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn gradients(&mut self, comm: &mut Communicator) -> Result<Vec<(usize, Tensor)>, TrainError> {
        for bucket in &mut self.buckets {
            if let Some(request) = bucket.request.take() {
                bucket.here = Some(request.wait(&self.stream)?);
            }
        }
        // Here, and not where candle waits for a number: this wait has a deadline, if another rank does not come.
        comm.synchronize(&self.stream)?;
        let mut gradients = Vec::new();
        for (bucket, members) in self.buckets.iter().zip(&self.plan.members) {
            let memory = bucket.here.as_ref().expect("the bucket is back");
            // The next pass may write to the bucket as soon as this copy is queued.
            let copy = self.stream.clone_dtod(memory).map_err(failed("copying a bucket"))?;
            let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(copy, self.device.clone()));
            let flat = Tensor::from_storage(storage, memory.len(), BackpropOp::none(), false);
            for &index in members {
                let range = &self.plan.place(index, &self.names).range;
                let shape = &self.parameters[index].shape[..];
                gradients.push((index, flat.narrow(0, range.start, range.len())?.reshape(shape)?));
            }
        }
        Ok(gradients)
    }

    /// Puts a gradient into its bucket; zeros if there is none.
    fn write(&mut self, index: usize, gradient: Option<&Tensor>) -> Result<(), TrainError> {
        let Place { bucket, range } = self.plan.place(index, &self.names).clone();
        let bucket = &mut self.buckets[bucket];
        bucket.missing -= 1;
        if range.is_empty() {
            return Ok(());
        }
        let memory = bucket.here.as_mut().expect("the bucket is not yet launched");
        let mut target = memory.slice_mut(range.clone());
        let Some(gradient) = gradient else {
            return self.stream.memset_zeros(&mut target).map_err(failed("filling a bucket with zeros"));
        };
        let (storage, layout) = gradient.storage_and_layout();
        let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            return Err(not_as_expected(&self.names[index], gradient));
        };
        assert_eq!(end - start, range.len(), "a gradient has as many values as its parameter");
        let source = storage.as_cuda_slice::<f32>()?.slice(start..end);
        self.stream.memcpy_dtod(&source, &mut target).map_err(failed("copying a gradient into its bucket"))
    }

    /// Launches, in order, all buckets that are complete and not yet launched.
    fn launch(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        while let Some(bucket) = self.buckets.get_mut(self.launched).filter(|bucket| bucket.missing == 0) {
            if self.has_others {
                let memory = bucket.here.take().expect("the bucket is not yet launched");
                bucket.request = Some(comm.all_reduce_device_async(memory, ReduceOp::Sum, &self.stream)?);
            }
            self.launched += 1;
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
    pass: Pass,
    /// By the index of the parameter.
    is_whole: Vec<bool>,
    is_weighed: bool,
    failure: Option<TrainError>,
}

impl Filling<'_> {
    /// Ends the pass, as [`crate::Filling::end`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub(super) fn end(mut self) -> Result<Vec<usize>, TrainError> {
        if !self.is_weighed {
            self.weigh(Tally::default());
        }
        let trained: Vec<_> = self.buckets.plan.trained().collect();
        let without: Vec<_> = trained.into_iter().filter(|&index| !self.is_whole[index]).collect();
        if self.pass.is_last() {
            for &index in &without {
                self.attempt(|filling| filling.write(index, None));
            }
        }
        self.failure.map_or(Ok(without), Err)
    }

    /// The error that prevented a gradient from being reduced, if any.
    pub(super) fn into_failure(self) -> Option<TrainError> {
        self.failure
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> Result<(), TrainError>) {
        if self.failure.is_none() {
            self.failure = act(self).err();
        }
    }

    /// Adds a gradient to those of earlier passes; in the last pass, launches it.
    fn write(&mut self, index: usize, gradient: Option<&Tensor>) -> Result<(), TrainError> {
        let earlier = self.buckets.waiting[index].take();
        let sum = match (earlier, gradient) {
            (Some(earlier), Some(gradient)) => Some((earlier + gradient)?.detach()),
            (earlier, gradient) => earlier.or_else(|| gradient.map(Tensor::detach)),
        };
        if !self.pass.is_last() {
            self.buckets.waiting[index] = sum;
            return Ok(());
        }
        self.buckets.write(index, sum.as_ref())?;
        self.buckets.launch(self.comm)
    }
}

impl Gradients for Filling<'_> {
    fn weigh(&mut self, tally: Tally) {
        assert!(!self.is_weighed, "a pass is weighed once");
        self.is_weighed = true;
        self.buckets.own.tally += tally;
        self.buckets.own.ranks_out_of_data = f64::from(u8::from(self.pass.is_out_of_data));
        self.buckets.own.ranks_to_stop = f64::from(u8::from(self.pass.asks_to_stop));
        if self.pass.is_last() {
            let DeviceBuckets { own, aside, has_others, .. } = &mut *self.buckets;
            own.write(aside.values_mut());
            if *has_others {
                let launched = aside.launch(self.comm, Way { is_beside: true, in_tree: false });
                self.attempt(|_| Ok(launched?));
            }
        }
    }

    /// For a replica that has its gradients on the host, though it is on a GPU.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill)) {
        let mut values = vec![0.0; self.buckets.parameters[index].count()];
        write(&mut values, Fill::Set);
        let device = candle_core::Device::Cuda(self.buckets.device.clone());
        let gradient = Tensor::from_vec(values, &self.buckets.parameters[index].shape[..], &device);
        let put = gradient.and_then(|gradient| self.put_tensor(index, &gradient));
        self.attempt(|_| Ok(put?));
    }

    fn put_tensor(&mut self, index: usize, gradient: &Tensor) -> candle_core::Result<()> {
        let name = &self.buckets.names[index];
        assert!(self.is_weighed, "the gradient of {name} was put before the pass was weighed");
        assert!(!self.is_whole[index], "the gradient of {name} was put twice in one pass");
        self.is_whole[index] = true;
        self.attempt(|filling| filling.write(index, Some(gradient)));
        // The pass need not go on for nothing; what has failed is told at its end.
        if self.failure.is_some() { bail!("a gradient could not be reduced") } else { Ok(()) }
    }
}
