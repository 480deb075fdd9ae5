//! A part of a model, in the form that the pipeline needs. Any framework can implement it.

use unisono_train::metrics::VisitOutputs;
use unisono_train::{Gradients, LossSums, Parameter, ReplicaError};

/// An array that stages exchange: the activations of a micro-batch, or their gradients.
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
    /// The loss, which only the last stage returns.
    Loss(LossSums),
}

/// A part of a model that is cut into stages, on one rank.
///
/// Parameters follow the rules of [`Replica::parameters`](unisono_train::Replica::parameters). They are the same on all ranks that hold this stage.
pub trait Stage {
    /// The samples of a micro-batch. All stages receive them: the first reads the inputs, the last the targets.
    type Batch: Send + 'static;

    /// Returns the parameters of this stage only.
    fn parameters(&self) -> &[Parameter];

    /// Computes the output for the activations of the previous stage or, at the first stage, for the samples. Keeps the data that the backward pass
    /// of this micro-batch needs. Micro-batches are numbered from 0 in each step.
    ///
    /// # Errors
    /// Any error of the framework. It ends the run.
    fn forward(
        &mut self,
        micro_batch: usize,
        batch: &Self::Batch,
        before: Option<&Activations>,
    ) -> Result<StageOutput, ReplicaError>;

    /// Runs the backward pass of a micro-batch with the data that [`Stage::forward`] kept. It starts from the gradient of the activations or, at the
    /// last stage, from the loss. Reports each parameter's gradient once, as [`Replica::pass`](unisono_train::Replica::pass) does, but no loss.
    /// Returns the gradient of the activations of the previous stage.
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn backward(
        &mut self,
        micro_batch: usize,
        gradient: Option<&Activations>,
        gradients: &mut dyn Gradients,
    ) -> Result<Option<Activations>, ReplicaError>;

    /// As [`Stage::forward`], but changes and keeps nothing. If `visit` is given and this is the last stage, calls it with the model's outputs,
    /// unless the stage does not provide them.
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn evaluate(
        &mut self,
        batch: &Self::Batch,
        before: Option<&Activations>,
        visit: Option<VisitOutputs<'_>>,
    ) -> Result<StageOutput, ReplicaError>;

    /// As [`Replica::with_values`](unisono_train::Replica::with_values).
    ///
    /// # Errors
    /// As [`Stage::forward`].
    fn with_values(&mut self, index: usize, visit: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;
}
