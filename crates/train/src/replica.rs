//! A model on one rank, in the form that the trainer needs. Any framework can implement it.

use std::time::Duration;

use crate::backend::Backend;
use crate::gradients::{Visit, VisitOutputs};
use crate::{BucketSettings, Gradients, LossSums, OptimizerSettings, Parameter, ReplicaError, TrainError};
use unisono::Communicator;

/// One rank's copy of a model.
///
/// A parameter is identified by its index in [`Replica::parameters`], which is the same on all ranks. List parameters in the order in which the
/// forward pass uses them, if there is one. Gradients are then complete from the last to the first, and are all-reduced in that order.
pub trait Replica {
    /// The input of one pass: the samples of a micro-batch.
    type Batch: Send + 'static;

    /// Returns all parameters, in the same order on all ranks.
    fn parameters(&self) -> &[Parameter];

    /// Runs a forward and a backward pass. Reports the [`LossSums`] to `gradients` once the loss is known, then each parameter's gradient, once, as
    /// soon as it is complete. The gradient is that of the loss's *sum* over targets.
    ///
    /// # Errors
    /// Any error of the framework. It ends the run.
    fn pass(&mut self, batch: &Self::Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError>;

    /// Returns whether [`Replica::pass`] communicates, because a layer needs the samples of all ranks. If so, all ranks make the same number of
    /// passes in a step, and ranks that have fewer call [`Replica::pass_without_samples`].
    fn synchronizes(&self) -> bool {
        false
    }

    /// Creates the communicators of passes that [communicate](Replica::synchronizes). Called once, by all ranks, before the first step.
    ///
    /// # Errors
    /// Errors of the collectives.
    fn connect(&mut self, _comm: &mut Communicator) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Begins a step for which this rank has `passes` passes, and returns the number that it makes. Passes are numbered from `first`. The numbers are
    /// unique among all ranks in a step, so that passes use different random numbers. Called by all ranks.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn begin_step(&mut self, _first: u64, passes: usize) -> Result<usize, ReplicaError> {
        Ok(passes)
    }

    /// Takes part in a pass for which this rank has no samples while others may have some: see [`Replica::synchronizes`].
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn pass_without_samples(&mut self) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Returns the ranks that hold the other parts of the model, if this replica is only a part.
    fn parts(&mut self) -> Option<Parts<'_>> {
        None
    }

    /// Returns the time that the last [pass](Replica::pass) waited for other ranks.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Evaluates the model on a batch without changing it. If `visit` is given and the model provides its outputs for the targets, calls `visit` with
    /// them, for [metrics](crate::metrics).
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn evaluate(
        &mut self,
        batch: &Self::Batch,
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError>;

    /// Calls `visit` once with the values of the parameter with this index, in place and in row-major order. The next pass uses the values that
    /// `visit` writes.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;

    /// Returns whether [`Replica::pass`] calls [`Gradients::wait_for_param`] for every trained parameter, before it uses the parameter's values and
    /// before it records the loss. A step can then [begin](crate::Overlap::Across) before the update of the previous step is complete.
    fn brings_values(&self) -> bool {
        false
    }

    /// Returns whether the values of trained parameters are in memory that all ranks share. If so, [`Replica::with_values`] accesses the shared
    /// values, and [`Replica::device`] must update each value only once.
    fn shares_values(&self) -> bool {
        false
    }

    /// Returns the backend that reduces gradients and updates the values in place, if they are not in this rank's memory on the host. Called by all
    /// ranks: either all return one or none does.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if it does not support these settings or this optimizer. An error of the driver.
    fn device(
        &self,
        _comm: &mut Communicator,
        _optimizer: &OptimizerSettings,
        _buckets: &BucketSettings,
    ) -> Result<Option<Box<dyn Backend>>, TrainError> {
        Ok(None)
    }
}

/// The values of a replica, as [`Values`](crate::gradients::Values).
pub(crate) fn values(replica: &mut impl Replica) -> impl FnMut(usize, Visit<'_>) -> Result<(), ReplicaError> {
    |index, visit| replica.with_values(index, visit)
}

/// The ranks that together hold a model, each some of its stages: the ranks of a pipeline.
#[derive(Debug)]
pub struct Parts<'a> {
    /// These ranks.
    pub comm: &'a mut Communicator,
    /// The index of the first parameter of each of this rank's stages; stage i of rank r is stage i · ranks + r of the model.
    pub first: &'a [usize],
}
