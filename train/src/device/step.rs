//! The data-parallel step on a GPU: [`OnDevice::step`] reads in the order in which things happen, as the host's does.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};

use super::buckets::DeviceBuckets;
use super::refusal;
use crate::buckets::{BucketSettings, Pass, Sums};
use crate::error::TrainError;
use crate::optimizer::tensors::TensorOptimizer;
use crate::optimizer::{Optimizer, OptimizerSettings, clip_factor};
use crate::replica::Replica;
use crate::share::{Share, StepReport, Times, in_every_pass};
use unisono::Communicator;

/// Replaces a mirror's buckets and optimizer on the host, if its replica is on a GPU.
pub(crate) struct OnDevice {
    device: Device,
    buckets: DeviceBuckets,
    optimizer: TensorOptimizer,
    /// The replica's values, in place.
    values: Vec<Tensor>,
}

impl fmt::Debug for OnDevice {
    /// Omits the contents of GPU memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnDevice").field("device", &self.device).finish_non_exhaustive()
    }
}

impl OnDevice {
    /// What this replica needs, if it is on a GPU.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if these settings ask for what a GPU does not do, or the replica is on another rank's; what the
    /// driver objects to.
    pub(crate) fn of<R: Replica>(
        comm: &mut Communicator,
        replica: &R,
        optimizer: OptimizerSettings,
        buckets: &BucketSettings,
    ) -> Result<Option<Self>, TrainError> {
        let Some(values) = replica.on_device() else { return Ok(None) };
        let Some(device) = values.first().map(Tensor::device) else { return Ok(None) };
        if let Some(why) = refusal(buckets, false) {
            return Err(TrainError::Setting(why));
        }
        Ok(Some(Self {
            device: device.clone(),
            buckets: DeviceBuckets::new(comm, device.as_cuda_device()?, replica.parameters(), buckets)?,
            optimizer: TensorOptimizer::new(optimizer, values.len()),
            values: values.to_vec(),
        }))
    }

    /// Makes a data-parallel step; returns its report and the indices of parameters without a gradient in any pass.
    ///
    /// # Errors
    /// Errors of the collectives; [`TrainError::Replica`].
    pub(crate) fn step<R: Replica>(
        &mut self,
        comm: &mut Communicator,
        replica: &mut R,
        share: Share<'_, R::Batch>,
        rate: f64,
        clip_norm: Option<f64>,
        goes_on: impl FnOnce(&Sums) -> bool,
    ) -> Result<(StepReport, Option<BTreeSet<usize>>), TrainError> {
        let began = Instant::now();
        let never_put = self.pass(comm, replica, share)?;
        // Until now the pass was only queued. Nothing in it waits for another rank, so this ends.
        self.device.synchronize()?;
        let computed = Instant::now();
        let sums = self.buckets.sums()?;
        let gradients = self.buckets.gradients(comm)?;
        let landed = Instant::now();
        let mut norm = None;
        if goes_on(&sums) && sums.tally.targets > 0.0 {
            let mut scale = (1.0 / sums.tally.targets) as f32;
            if let Some(most) = clip_norm {
                let found = norm_of(&gradients)? * f64::from(scale);
                scale *= clip_factor(found, most);
                norm = Some(found);
            }
            self.optimizer.begin_step();
            for (index, gradient) in &gradients {
                self.optimizer.update(*index, &self.values[*index], gradient, scale, rate as f32)?;
            }
        }
        self.device.synchronize()?;
        let times = Times {
            input: Duration::ZERO,
            compute: computed - began,
            // The GPU knows, and is not asked.
            hidden: Duration::ZERO,
            exposed: landed - computed,
            update: landed.elapsed(),
        };
        let own = self.buckets.own_tally();
        Ok((StepReport { sums, own, norm, times, without_gradient: Vec::new() }, never_put))
    }

    /// Runs this rank's micro-batches.
    fn pass<R: Replica>(
        &mut self,
        comm: &mut Communicator,
        replica: &mut R,
        share: Share<'_, R::Batch>,
    ) -> Result<Option<BTreeSet<usize>>, TrainError> {
        let of = share.passes.len().max(1);
        let mut never_put = None;
        for number in 0..of {
            let Share { is_out_of_data, asks_to_stop, .. } = share;
            let pass = Pass { number, of, is_out_of_data, asks_to_stop };
            let batch = share.passes.get(number).and_then(Option::as_ref);
            let mut filling = self.buckets.fill(comm, pass);
            if let Some(Err(error)) = batch.map(|batch| replica.pass(batch, &mut filling)) {
                // What kept a gradient from its way says more than that the pass ended.
                return Err(filling.into_failure().unwrap_or_else(|| error.into()));
            }
            let without = filling.end()?;
            if batch.is_some() {
                never_put = in_every_pass(never_put, without);
            }
        }
        Ok(never_put)
    }

    /// Copies the optimizer state to the host.
    ///
    /// # Errors
    /// An error of candle.
    pub(crate) fn save(&self, host: &mut Optimizer) -> Result<(), TrainError> {
        Ok(self.optimizer.save(host)?)
    }

    /// Restores the optimizer state from the host.
    ///
    /// # Errors
    /// An error of candle.
    pub(crate) fn load(&mut self, host: &Optimizer) -> Result<(), TrainError> {
        Ok(self.optimizer.load(host, &self.values)?)
    }
}

/// The norm of the summed gradient. In `f64`, as on the host.
fn norm_of(gradients: &[(usize, Tensor)]) -> Result<f64, TrainError> {
    let mut squares = 0.0;
    for (_, gradient) in gradients {
        squares += gradient.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    }
    Ok(squares.sqrt())
}
