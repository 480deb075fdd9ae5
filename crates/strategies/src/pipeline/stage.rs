//! A part of a model, as the pipeline sees it. Any framework can implement it.

use unisono_train::metrics::SeeOutputs;
use unisono_train::{Gradients, LossSums, Parameter, ReplicaError};

/// An array that stages pass on: the activations of a micro-batch, or their gradients.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Activations {
    /// Its dimensions, at most 7.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Vec<f32>,
}

/// The result of a forward pass through a stage.
#[derive(Debug, Clone, PartialEq)]
pub enum StageOutput {
    /// The input of the next stage.
    Activations(Activations),
    /// The loss: the last stage's.
    Loss(LossSums),
}

/// A part of a model that is cut into stages, on one rank.
///
/// Parameters are as [those of a replica](unisono_train::Replica::parameters): the same on all ranks that hold this stage.
pub trait Stage {
    /// The samples of a micro-batch. All stages get them: the first reads the inputs, the last the targets.
    type Batch: Send + 'static;

    /// Returns the parameters of this stage alone.
    fn parameters(&self) -> &[Parameter];

    /// Computes with the activations of the stage before, or with the samples at the first stage, and keeps what the backward pass
    /// of this micro-batch needs. Micro-batches are numbered from 0 in each step.
    ///
    /// # Errors
    /// Any error of the framework; it ends the run.
    fn forward(
        &mut self,
        micro_batch: usize,
        batch: &Self::Batch,
        before: Option<&Activations>,
    ) -> Result<StageOutput, ReplicaError>;

    /// Goes back through what [`Stage::forward`] kept for this micro-batch, from the gradient of its activations, or from its loss at
    /// the last stage. Reports each parameter's gradient once, as [`Replica::pass`](unisono_train::Replica::pass) does, but no tally. Returns the gradient of what the
    /// forward pass got from the stage before.
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: Option<&Activations>,
        gradients: &mut dyn Gradients,
    ) -> Result<Option<Activations>, ReplicaError>;

    /// As [`Stage::forward`], but changes and keeps nothing. Calls `see`, if it is given, with the model's outputs, if this is the last
    /// stage, and it knows them.
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn evaluate(
        &mut self,
        batch: &Self::Batch,
        before: Option<&Activations>,
        see: Option<SeeOutputs<'_>>,
    ) -> Result<StageOutput, ReplicaError>;

    /// As [`Replica::with_values`](unisono_train::Replica::with_values).
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn with_values(&mut self, index: usize, see: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;
}
