//! The interface between a model and the trainer in a pass: parameters and their values, gradients and loss sums.

use std::any::Any;
use std::error::Error;
use std::ops::AddAssign;

use unisono::copy;

/// An error of a framework.
pub type ReplicaError = Box<dyn Error + Send + Sync>;

/// An array of a model: a trained parameter, or a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, unique in the model.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Whether it has a gradient. A buffer without one (such as the running mean of a normalisation) is broadcast and saved like other arrays, but
    /// neither reduced nor updated.
    pub is_trained: bool,
}

impl Parameter {
    /// Returns a trained parameter.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into(), is_trained: true }
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A function that calls another with the values of the parameter with this index: [`Replica::with_values`](crate::Replica::with_values).
pub type Values<'a> = &'a mut dyn FnMut(usize, Visit<'_>) -> Result<(), ReplicaError>;

/// Reads or changes the values of a parameter, in place and in row-major order.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&mut [f32]);

/// Receives the gradients of a pass.
pub trait Gradients {
    /// Waits for the gradient of this parameter from the previous step, and updates these values with it, unless that is done already. A replica with
    /// [`brings_values`](crate::Replica::brings_values) calls it before its forward pass uses the values.
    ///
    /// # Errors
    /// The gradient does not arrive, or is not finite. The pass must end with this error.
    fn wait_for_param(&mut self, _index: usize, _values: &mut [f32]) -> Result<(), ReplicaError> {
        Ok(())
    }

    /// Reports the loss and its number of targets. Called once per pass, before the first gradient.
    fn record_loss(&mut self, tally: LossSums);

    /// Calls `write` with the place of the gradient of this parameter, in row-major order. The gradient is then complete, and may be sent to the
    /// other ranks before this returns.
    fn put(&mut self, index: usize, write: &mut dyn FnMut(&mut [f32], Fill));

    /// Like [`put`](Self::put), for a gradient on a device, in the form of the framework and with the parameter's shape. Returns whether the gradient
    /// was accepted. If not, which is the default, the replica must [put](Gradients::put) it from the host.
    ///
    /// # Errors
    /// The error that prevents the gradient from being sent. The pass must end with this error.
    #[doc(hidden)]
    fn put_on_device(&mut self, _index: usize, _gradient: &dyn Any) -> Result<bool, ReplicaError> {
        Ok(false)
    }
}

/// The treatment of the existing values of a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// The values are undefined: overwrite them.
    Set,
    /// The values are the gradient of earlier micro-batches: add to them.
    Add,
}

impl Fill {
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

/// The outputs of a model for some targets, and these targets.
#[derive(Debug, Clone, Copy)]
pub struct Outputs<'a> {
    /// The logits, one for each class: `targets x classes`.
    pub values: &'a [f32],
    /// The number of classes.
    pub classes: usize,
    /// The target classes. If `classes` is 1, the [bits](f32::to_bits) of the numbers that a regression should predict.
    pub targets: &'a [u32],
}

impl<'a> Outputs<'a> {
    /// Returns the outputs for each target, and the target's class.
    pub fn rows(&self) -> impl Iterator<Item = (&'a [f32], usize)> + use<'a> {
        self.values.chunks_exact(self.classes).zip(self.targets).map(|(row, &target)| (row, target as usize))
    }

    /// Returns the output and the target of each row of a regression.
    pub fn numbers(&self) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let pair = |(&output, &bits): (&f32, &u32)| (f64::from(output), f64::from(f32::from_bits(bits)));
        self.values.iter().zip(self.targets).map(pair)
    }
}

/// Receives outputs of a model.
pub type VisitOutputs<'a> = &'a mut dyn FnMut(&Outputs<'_>);

/// Sums over targets: images, or characters of a text.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Default,
    serde::Serialize,
    serde::Deserialize,
    bytemuck::Pod,
    bytemuck::Zeroable,
)]
#[repr(C)]
pub struct LossSums {
    /// The number of targets: the weight of a gradient in the mean.
    pub targets: f64,
    /// The sum of their losses: in nats, or squared errors of a regression.
    #[serde(deserialize_with = "crate::report::null_is_nan")]
    pub loss: f64,
    /// The number of targets that the model predicts correctly. A training pass may leave it 0, and it is NaN for a regression.
    #[serde(deserialize_with = "crate::report::null_is_nan")]
    pub correct: f64,
}

impl LossSums {
    /// Returns the mean loss per target.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.targets
    }

    /// Returns the fraction of targets that the model predicts correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct / self.targets
    }
}

impl AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.targets += other.targets;
        self.loss += other.loss;
        self.correct += other.correct;
    }
}
