//! A GPU: gradients and parameters stay in its memory. Each gradient is copied into its bucket as soon as the backward pass
//! knows it, full buckets are all-reduced during that pass, and the update uses candle operations.
//!
//! Everything is only queued on candle's stream, so the host waits where a step's times are taken.

use std::fmt;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use super::{Backend, Run, State};
use crate::buckets::{BucketSettings, Buckets, Ledger, Pass, Sums};
use crate::device::refusal;
use crate::error::TrainError;
use crate::optimizer::tensors::TensorOptimizer;
use crate::optimizer::{Optimizer, OptimizerSettings};
use crate::replica::Replica;
use crate::share::Times;
use unisono::Communicator;

mod buckets;

use buckets::DeviceBuckets;

pub(super) struct Gpu {
    device: Device,
    buckets: DeviceBuckets,
    optimizer: TensorOptimizer,
    /// The replica's values, in place.
    values: Vec<Tensor>,
    /// Empty.
    buckets_on_host: Buckets,
    /// A copy of the optimizer, from when its state was last saved or restored.
    optimizer_on_host: Optimizer,
}

impl fmt::Debug for Gpu {
    /// Omits the contents of GPU memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Gpu {
    /// The GPU of this replica, if it is on one.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if a GPU does not support these settings or this optimizer, or the replica is on another rank's; what the driver
    /// objects to.
    pub(super) fn of<R: Replica>(
        comm: &mut Communicator,
        replica: &R,
        optimizer: &OptimizerSettings,
        buckets: &BucketSettings,
    ) -> Result<Option<Self>, TrainError> {
        let Some(values) = replica.on_device() else { return Ok(None) };
        let Some(device) = values.first().map(Tensor::device) else { return Ok(None) };
        if let Some(why) = refusal(buckets, false) {
            return Err(TrainError::Setting(why));
        }
        let factors = replica.parameters().iter().map(|found| (optimizer.factors)(&found.name, &found.shape));
        let on_tensors = TensorOptimizer::new(optimizer.clone(), factors.collect());
        let buckets_on_host = Buckets::new(comm, &[], buckets)?;
        Ok(Some(Self {
            device: device.clone(),
            buckets: DeviceBuckets::new(comm, device.as_cuda_device()?, replica.parameters(), buckets)?,
            optimizer: on_tensors.map_err(TrainError::Setting)?,
            values: values.to_vec(),
            optimizer_on_host: super::optimizer_of(
                optimizer.clone(),
                replica.parameters(),
                &buckets_on_host,
            )?,
            buckets_on_host,
        }))
    }
}

impl<R: Replica> Backend<R> for Gpu {
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        let mut filling = self.buckets.fill(comm, pass);
        match run(&mut filling) {
            Ok(()) => filling.end(),
            // What kept a gradient from its way says more than that the pass ended.
            Err(error) => Err(filling.into_failure().unwrap_or_else(|| error.into())),
        }
    }

    /// Nothing in a pass waits for another rank, so this ends.
    fn wait_for_passes(&self) -> Result<(), TrainError> {
        Ok(self.device.synchronize()?)
    }

    fn sums(&mut self) -> Result<Sums, TrainError> {
        self.buckets.sums()
    }

    /// Waits for all gradients at once.
    fn land(&mut self, comm: &mut Communicator, _: usize) -> Result<(), TrainError> {
        self.buckets.land(comm)
    }

    /// In `f64`, as on the host.
    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError> {
        let gradient = self.buckets.gradient(index)?;
        Ok(gradient.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar()?)
    }

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    fn update(&mut self, _: &mut R, index: usize, scale: f32, rate: f32) -> Result<(), TrainError> {
        let gradient = self.buckets.gradient(index)?;
        Ok(self.optimizer.update(index, &self.values[index], &gradient, scale, rate)?)
    }

    fn finish(&mut self, comm: &mut Communicator) -> Result<(), TrainError> {
        self.buckets.land(comm)?;
        self.device.synchronize()?;
        self.buckets.end_step();
        Ok(())
    }

    /// The GPU knows what was hidden, and is not asked.
    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let exposed = self.buckets.exposed();
        Times { compute: passes, exposed, update: rest.saturating_sub(exposed), ..Times::default() }
    }

    fn ledger(&self) -> &Ledger {
        self.buckets.ledger()
    }

    fn buckets(&self) -> &Buckets {
        &self.buckets_on_host
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        self.optimizer.save(&mut self.optimizer_on_host)?;
        Ok(&self.optimizer_on_host)
    }

    fn restore_optimizer(&mut self, steps: u64, state: State<'_, '_>) -> Result<(), TrainError> {
        self.optimizer_on_host.restore(steps, state)?;
        Ok(self.optimizer.load(&self.optimizer_on_host, &self.values)?)
    }

    fn is_gpu(&self) -> bool {
        true
    }
}
