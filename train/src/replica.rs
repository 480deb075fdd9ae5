//! What the trainer sees of a model on one rank. Any framework can be put under it.

use std::error::Error;
use std::ops::AddAssign;

/// What can go wrong in a framework.
pub type ReplicaError = Box<dyn Error + Send + Sync>;

/// An array of a model: what is trained, or what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, like no other's of the model.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Whether it has a gradient. What has none (the running mean of a normalisation) is broadcast and saved like
    /// all others, and neither reduced nor updated.
    pub is_trained: bool,
}

impl Parameter {
    /// A parameter that is trained.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), is_trained: true }
    }

    /// How many values it has.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// One rank's copy of a model.
///
/// Its parameters are known by their place in [`Replica::parameters`], which is the same on all ranks: the order in
/// which the forward pass comes to them, as far as there is one. Gradients are then ready from the last to the first,
/// and are all-reduced in that order.
pub trait Replica {
    /// What one pass takes: the samples of a micro-batch.
    type Batch: Send + 'static;

    /// All parameters, in the same order on all ranks.
    fn parameters(&self) -> &[Parameter];

    /// Goes forward and backward through the model: tells `gradients` the [`Tally`] once the loss is known, and then
    /// each parameter's gradient, once, as soon as it is whole. The gradient is that of the loss's *sum* over targets.
    ///
    /// # Errors
    /// Whatever the framework objects to; the run ends then.
    fn pass(&mut self, batch: &Self::Batch, gradients: &mut dyn Gradients) -> Result<(), ReplicaError>;

    /// Measures the model on a batch, and changes nothing.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<Tally, ReplicaError>;

    /// Calls `see` once with the values of the parameter with this index, where they lie and in row-major order. What
    /// `see` writes is what the next pass computes with.
    ///
    /// # Errors
    /// As [`Replica::pass`].
    fn with_values(&mut self, index: usize, see: &mut dyn FnMut(&mut [f32])) -> Result<(), ReplicaError>;

    /// The values of all parameters, if they are on a GPU, in the shapes and the order of [`Replica::parameters`]. What is
    /// written to them is what the next pass computes with; that pass tells gradients by [`Gradients::put_tensor`].
    #[cfg(feature = "cuda")]
    fn on_device(&self) -> Option<&[candle_core::Tensor]> {
        None
    }
}

/// What a pass tells of its gradients.
pub trait Gradients {
    /// Tells what the loss is over how many targets. Called once in a pass, before the first gradient.
    fn weigh(&mut self, tally: Tally);

    /// Has `write` put the gradient of the parameter with this index, in row-major order, where it will be reduced. It
    /// is whole then, and may be on its way to the other ranks before this returns.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill));

    /// The same for a gradient on a GPU, of the parameter's shape. Unless somebody has a better use for it, it is copied to the
    /// host.
    ///
    /// # Errors
    /// What candle objects to.
    #[cfg(feature = "cuda")]
    fn put_tensor(&mut self, index: usize, gradient: &candle_core::Tensor) -> candle_core::Result<()> {
        let values = gradient.flatten_all()?.to_vec1::<f32>()?;
        self.put(index, &mut |target, fill| fill.write(target, &values));
        Ok(())
    }
}

/// What to do with the values that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// They mean nothing: overwrite them.
    Set,
    /// They are the gradient of earlier micro-batches: add to them.
    Add,
}

impl Fill {
    /// Sets, or adds to, `target` these values.
    ///
    /// # Panics
    /// If there are more or fewer values than `target` holds.
    pub fn write(self, target: &mut [f32], values: &[f32]) {
        match self {
            Self::Set => target.copy_from_slice(values),
            Self::Add => {
                assert_eq!(target.len(), values.len(), "a gradient has as many values as its parameter");
                target.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}

/// Sums over targets: images, or characters of a text.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// How many targets there are: the weight of a gradient in the mean.
    pub targets: f64,
    /// The sum of their losses, in nats.
    pub loss: f64,
    /// How many of them the model puts first; a training pass may leave it 0.
    pub correct: f64,
}

impl Tally {
    /// The loss of a target, on the mean.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.targets
    }

    /// The share of targets that the model puts first, 0 to 1.
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
