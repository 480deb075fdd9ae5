//! A model on one rank, as the trainer sees it. Any framework can implement it.

use std::time::Duration;

use crate::backend::Backend;
use crate::buckets::BucketSettings;
use crate::error::TrainError;
use crate::gradients::{Gradients, LossSums, Parameter, ReplicaError, See, SeeOutputs};
use crate::optimizer::OptimizerSettings;
use unisono::Communicator;

/// One rank's copy of a model.
///
/// A parameter is identified by its index in [`Replica::parameters`], the same on all ranks. List parameters in the order in
/// which the forward pass uses them, if there is one. Gradients are then ready from the last to the first, and are
/// all-reduced in that order.
pub trait Replica {
    /// The input of one pass: the samples of a micro-batch.
    type Batch: Send + 'static;

    /// Returns all parameters, in the same order on all ranks.
    fn parameters(&self) -> &[Parameter];

    /// Runs forward and backward through the model: reports the [`LossSums`] to `gradients` once the loss is known, then
    /// each parameter's gradient, once, as soon as it is complete. The gradient is that of the loss's *sum* over targets.
    ///
    /// # Errors
    /// Any error of the framework; it ends the run.
    fn pass(&mut self, batch: &Self::Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError>;

    /// Returns whether [`Replica::pass`] communicates, because a layer needs the samples of all ranks: then all ranks make the same
    /// number of passes in a step, and those that have fewer call [`Replica::pass_without_samples`].
    fn synchronizes(&self) -> bool {
        false
    }

    /// Makes what passes need to [communicate](Replica::synchronizes). Called once, by all ranks, before the first step.
    ///
    /// # Errors
    /// Errors of the collectives.
    fn connect(&mut self, _comm: &mut Communicator) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Begins a step for which this rank has this many passes, and returns how many it makes. Passes are numbered from `first`, and no
    /// two of a step have the same number on any ranks: it makes their random numbers differ. Called by all ranks.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn begin_step(&mut self, _first: u64, passes: usize) -> Result<usize, ReplicaError> {
        Ok(passes)
    }

    /// Takes part in a pass for which this rank has no samples and others may have some: see [`Replica::synchronizes`].
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn pass_without_samples(&mut self) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Returns the ranks that hold the other parts of the model, if this replica is a part of it.
    fn parts(&mut self) -> Option<Parts<'_>> {
        None
    }

    /// Returns the time that the last [pass](Replica::pass) waited for other ranks.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Evaluates the model on a batch, and changes nothing. Calls `see`, if it is given, with the model's outputs for the targets, if it
    /// knows them: for [metrics](crate::metrics).
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn evaluate(
        &mut self,
        batch: &Self::Batch,
        see: Option<SeeOutputs<'_>>,
    ) -> Result<LossSums, ReplicaError>;

    /// Calls `see` once with the values of the parameter with this index, in place and in row-major order. The next
    /// pass computes with what `see` writes.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn with_values(&mut self, index: usize, see: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;

    /// Returns whether [`Replica::pass`] calls [`Gradients::wait_for_param`] for every trained parameter: before it uses its values, and
    /// before it weighs. A step can then [begin](crate::Overlap::Across) before all parameters have the update of the step
    /// before.
    fn brings_values(&self) -> bool {
        false
    }

    /// Returns whether the values of trained parameters lie in memory that all ranks share: then [`Replica::with_values`] gives what all
    /// ranks see, and [`Replica::device`] must update each value once.
    fn shares_values(&self) -> bool {
        false
    }

    /// Returns the backend that reduces gradients and updates the values where they are, if that is not the memory of this rank on the
    /// host. Called by all ranks: either all have one or none has.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if it does not support these settings or this optimizer; what the driver objects to.
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
pub(crate) fn values(replica: &mut impl Replica) -> impl FnMut(usize, See<'_>) -> Result<(), ReplicaError> {
    |index, see| replica.with_values(index, see)
}

/// The ranks that hold a model together, each some of its stages: the ranks of a pipeline.
#[derive(Debug)]
pub struct Parts<'a> {
    /// These ranks.
    pub comm: &'a mut Communicator,
    /// The index of the first parameter of each of this rank's stages; stage i of rank r is stage i · ranks + r of the model.
    pub first: &'a [usize],
}
