//! Training on a GPU: gradients and parameters stay in its memory. Each gradient is copied into its bucket as soon as the backward pass has computed
//! it. Full buckets are all-reduced during that pass, and the update uses candle operations.
//!
//! Operations are only enqueued on candle's stream, so the host blocks where the times of a step are measured.

use std::fmt;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use crate::error::failed;
use crate::tensors::TensorOptimizer;
use unisono::Communicator;
use unisono_train::internals::{Backend, Ledger, Run, State, Update, Values, refusal};
use unisono_train::optimizer::{Factors, Optimizer, OptimizerSettings};
use unisono_train::{BucketSettings, Parameter, Pass, Sums, Times, TrainError};

mod buckets;

use buckets::DeviceBuckets;

pub(crate) struct Gpu {
    device: Device,
    buckets: DeviceBuckets,
    optimizer: TensorOptimizer,
    /// The replica's values, in place.
    values: Vec<Tensor>,
    /// A copy of the optimizer from the last save or restore of its state.
    optimizer_on_host: Optimizer,
}

impl fmt::Debug for Gpu {
    /// Omits the contents of GPU memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Gpu {
    /// Returns the GPU that holds these parameters.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if a GPU does not support these settings or this optimizer, or if the parameters are on another rank's GPU. Errors of
    /// the driver.
    pub(crate) fn new(
        comm: &mut Communicator,
        (parameters, values): (&[Parameter], &[Tensor]),
        optimizer: &OptimizerSettings,
        buckets: &BucketSettings,
    ) -> Result<Self, TrainError> {
        if let Some(why) = refusal(buckets) {
            return Err(TrainError::Setting(why));
        }
        let device = values[0].device().clone();
        let factors: Vec<Factors> =
            parameters.iter().map(|found| (optimizer.factors)(&found.name, &found.shape)).collect();
        let count = |found: &Parameter| if found.is_trained { found.count() } else { 0 };
        let on_host = parameters.iter().map(count).zip(factors.iter().copied());
        Ok(Self {
            buckets: DeviceBuckets::new(comm, device.as_cuda_device().map_err(failed)?, parameters, buckets)?,
            values: values.to_vec(),
            optimizer_on_host: Optimizer::new(optimizer.clone(), on_host)?,
            optimizer: TensorOptimizer::new(optimizer.clone(), factors).map_err(TrainError::Setting)?,
            device,
        })
    }
}

impl Backend for Gpu {
    fn pass(&mut self, comm: &mut Communicator, pass: Pass, run: Run<'_>) -> Result<Vec<usize>, TrainError> {
        let mut filling = self.buckets.fill(comm, pass);
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
        self.buckets.sums()
    }

    /// Waits for all gradients at once.
    fn complete(&mut self, comm: &mut Communicator, _: usize) -> Result<(), TrainError> {
        self.buckets.complete(comm)
    }

    /// Computes in `f64`, as on the host.
    fn square_sum(&mut self, index: usize) -> Result<f64, TrainError> {
        let gradient = self.buckets.gradient(index)?;
        let sum = || gradient.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar();
        sum().map_err(failed)
    }

    fn begin_update(&mut self) {
        self.optimizer.begin_step();
    }

    fn update_parameter(&mut self, _: Values<'_>, index: usize, by: Update) -> Result<(), TrainError> {
        let gradient = self.buckets.gradient(index)?;
        self.optimizer.update(index, &self.values[index], &gradient, by.scale, by.rate).map_err(failed)
    }

    fn finish(&mut self, comm: &mut Communicator, _: Values<'_>) -> Result<(), TrainError> {
        self.buckets.complete(comm)?;
        self.device.synchronize().map_err(failed)?;
        self.buckets.landed.clear();
        Ok(())
    }

    /// The GPU does not report hidden communication.
    fn times(&self, passes: Duration, rest: Duration) -> Times {
        let exposed = self.buckets.exposed;
        Times { compute: passes, exposed, update: rest.saturating_sub(exposed), ..Times::default() }
    }

    fn ledger(&self) -> &Ledger {
        &self.buckets.ledger
    }

    fn optimizer(&mut self) -> Result<&Optimizer, TrainError> {
        self.optimizer.save(&mut self.optimizer_on_host).map_err(failed)?;
        Ok(&self.optimizer_on_host)
    }

    fn restore_optimizer(&mut self, steps: u64, state: State<'_, '_>) -> Result<(), TrainError> {
        self.optimizer_on_host.restore(steps, state)?;
        self.optimizer.load(&self.optimizer_on_host, &self.values).map_err(failed)
    }

    fn is_gpu(&self) -> bool {
        true
    }
}
