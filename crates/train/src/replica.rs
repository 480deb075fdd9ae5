//! A model on one rank, as the trainer sees it. Any framework can implement it.

use std::error::Error;
use std::ops::AddAssign;
use std::time::Duration;

use unisono::{Communicator, copy};

/// An error of a framework.
pub type ReplicaError = Box<dyn Error + Send + Sync>;

/// An array of a model: a trained parameter, or a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, unique in the model.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Whether it has a gradient. A buffer without one (the running mean of a normalisation) is broadcast and saved like
    /// all others, but neither reduced nor updated.
    pub is_trained: bool,
}

impl Parameter {
    /// A trained parameter.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), is_trained: true }
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One rank's copy of a model.
///
/// A parameter is identified by its index in [`Replica::parameters`], the same on all ranks. List parameters in the order in
/// which the forward pass uses them, if there is one. Gradients are then ready from the last to the first, and are
/// all-reduced in that order.
pub trait Replica {
    /// The input of one pass: the samples of a micro-batch.
    type Batch: Send + 'static;

    /// All parameters, in the same order on all ranks.
    fn parameters(&self) -> &[Parameter];

    /// Runs forward and backward through the model: reports the [`Tally`] to `gradients` once the loss is known, then
    /// each parameter's gradient, once, as soon as it is complete. The gradient is that of the loss's *sum* over targets.
    ///
    /// # Errors
    /// Any error of the framework; it ends the run.
    fn pass(&mut self, batch: &Self::Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError>;

    /// Whether [`Replica::pass`] communicates, because a layer needs the samples of all ranks: then all ranks make the same number of
    /// passes in a step, and those that have fewer call [`Replica::pass_without_samples`].
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

    /// Begins a step for which this rank has so many passes, and returns how many it makes. Passes are numbered from `first`, and no
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

    /// The ranks that hold the other parts of the model, if this replica is a part of it.
    fn parts(&mut self) -> Option<Parts<'_>> {
        None
    }

    /// How long the last [pass](Replica::pass) waited for other ranks.
    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    /// Evaluates the model on a batch, and changes nothing.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<Tally, ReplicaError>;

    /// The same, and calls `see` with the model's outputs for the targets, if it knows them: for [metrics](crate::metrics).
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn evaluate_outputs(
        &mut self,
        batch: &Self::Batch,
        _see: &mut dyn FnMut(&Outputs<'_>),
    ) -> Result<Tally, ReplicaError> {
        self.evaluate(batch)
    }

    /// Calls `see` once with the values of the parameter with this index, in place and in row-major order. The next
    /// pass computes with what `see` writes.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn with_values(&mut self, index: usize, see: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;

    /// Whether [`Replica::pass`] calls [`Gradients::bring`] for every trained parameter: before it uses its values, and before it
    /// weighs. A step can then [begin](crate::Overlap::Across) before all parameters have the update of the step before.
    fn brings_values(&self) -> bool {
        false
    }

    /// Whether the values of trained parameters lie in memory that all ranks share: then gradients and optimizer state do too
    /// ([central storage](crate::Strategy::CentralStorage)), and [`Replica::with_values`] gives what all ranks see.
    fn shares_values(&self) -> bool {
        false
    }

    /// The values of all parameters, if they are on a GPU, in the shapes and the order of [`Replica::parameters`]. The next
    /// pass computes with what is written to them, and reports gradients by [`Gradients::put_tensor`].
    #[cfg(feature = "cuda")]
    fn on_device(&self) -> Option<&[candle_core::Tensor]> {
        None
    }
}

/// The ranks that hold a model together, each some of its stages: those of a [`Pipeline`](crate::pipeline::Pipeline).
#[derive(Debug)]
pub struct Parts<'a> {
    /// These ranks.
    pub comm: &'a mut Communicator,
    /// The index of the first parameter of each of this rank's stages; stage i of rank r is stage i · ranks + r of the model.
    pub first: &'a [usize],
}

/// Receives the gradients of a pass.
pub trait Gradients {
    /// Waits for the gradient of this parameter from the step before, and updates these values with it, unless that was done. A replica
    /// that [says so](Replica::brings_values) calls it before its forward pass uses the values.
    ///
    /// # Errors
    /// The gradient does not arrive, or is not finite: the pass must end with this error.
    fn bring(&mut self, _index: usize, _values: &mut [f32]) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Reports the loss and its number of targets. Called once per pass, before the first gradient.
    fn weigh(&mut self, tally: Tally);

    /// Calls `write` with the place of the gradient of this parameter, in row-major order. The gradient
    /// is then complete, and may be on its way to the other ranks before this returns.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill));

    /// The same for a gradient on a GPU, with the parameter's shape. The default implementation copies it to the
    /// host.
    ///
    /// # Errors
    /// An error of candle.
    #[cfg(feature = "cuda")]
    fn put_tensor(&mut self, index: usize, gradient: &candle_core::Tensor) -> candle_core::Result<()> {
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        self.put(index, &mut |target, fill| fill.write(target, &values));
        Ok(())
    }
}

/// What to do with the existing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The values are undefined: overwrite them.
    Set,
    /// The values are the gradient of earlier micro-batches: add to them.
    Add,
}

impl Fill {
    /// Sets `target` to zeros, or adds none to it: the gradient of what the loss does not depend on.
    pub(crate) fn write_zeros(self, target: &mut [f32]) {
        if self == Self::Set {
            target.fill(0.0);
        }
    }

    /// Sets `target` to these values, or adds them to it.
    ///
    /// # Panics
    /// If the number of values differs from the length of `target`.
    pub fn write(self, target: &mut [f32], values: &[f32]) {
        match self {
            Self::Set => copy(target, values),
            Self::Add => {
                assert_eq!(target.len(), values.len(), "a gradient has as many values as its parameter");
                target.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// What a model says of some targets, and what they are.
#[derive(Debug, Clone, Copy)]
pub struct Outputs<'a> {
    /// A figure for each class, the higher the likelier (logits): `targets x classes`.
    pub values: &'a [f32],
    /// The number of classes.
    pub classes: usize,
    /// The classes; if there is one, the [bits](f32::to_bits) of the numbers that a regression should predict.
    pub targets: &'a [u32],
}

impl<'a> Outputs<'a> {
    /// The outputs for each target, and its class.
    pub fn rows(&self) -> impl Iterator<Item = (&'a [f32], usize)> + use<'a> {
        self.values.chunks_exact(self.classes).zip(self.targets).map(|(row, &target)| (row, target as usize))
    }

    /// The output and the target of each row of a regression.
    pub fn numbers(&self) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let pair = |(&output, &bits): (&f32, &u32)| (f64::from(output), f64::from(f32::from_bits(bits)));
        self.values.iter().zip(self.targets).map(pair)
    }
}

/// Sums over targets: images, or characters of a text.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// The number of targets: the weight of a gradient in the mean.
    pub targets: f64,
    /// The sum of their losses: in nats, or squared errors of a regression.
    #[serde(deserialize_with = "crate::report::null_is_nan")]
    pub loss: f64,
    /// How many of them the model predicts correctly; a training pass may leave it 0, and it is NaN for a regression.
    #[serde(deserialize_with = "crate::report::null_is_nan")]
    pub correct: f64,
}

impl Tally {
    /// The mean loss per target.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.targets
    }

    /// The fraction of targets that the model predicts correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.targets
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.targets += other.targets;
        self.loss += other.loss;
        self.correct += other.correct;
    }
}
