//! The interface of an optimizer: its update of a parameter, and its state.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;

use unisono::internals::Level;

use super::passes::Largest;

/// An update rule over flat memory. Implement it for a custom optimizer, and pass the rule to [`OptimizerSettings::new`].
///
/// Its state consists of arrays, each with one number per element of a parameter, initialised to zero. Checkpoints store them under their names. If
/// the optimizer is sharded, a rank passes only the elements that it updates, and their state.
///
/// ```
/// use unisono_train::optimizer::{Optimizer, OptimizerSettings, StepInfo, UpdateRule, largest};
///
/// /// AdaGrad (Duchi et al., 2011).
/// #[derive(Debug)]
/// struct AdaGrad;
///
/// impl UpdateRule for AdaGrad {
///     fn name(&self) -> &'static str {
///         "adagrad"
///     }
///
///     fn state_names(&self) -> &[&'static str] {
///         &["squares"]
///     }
///
///     fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32 {
///         for ((value, gradient), squares) in values.iter_mut().zip(gradient).zip(&mut *state[0]) {
///             let gradient = step.scale * gradient + step.decay * *value;
///             *squares += gradient * gradient;
///             *value -= step.rate * gradient / (squares.sqrt() + 1e-10);
///         }
///         largest(&[values, state[0]])
///     }
/// }
///
/// let mut optimizer = Optimizer::new(OptimizerSettings::new(AdaGrad), [(1, Default::default())])?;
/// let mut values = [1.0];
/// optimizer.begin_step();
/// optimizer.update(0, &mut values, &[-3.0], 1.0, 0.5)?;
/// assert_eq!(values, [1.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`OptimizerSettings::new`]: super::OptimizerSettings::new
pub trait UpdateRule: Any + Debug + Send + Sync {
    /// Returns the name for messages, in lower case.
    fn name(&self) -> &'static str;

    /// Returns the names of the arrays of its state in checkpoints. They must be distinct. `average` is reserved for [`Averaged`](super::Averaged).
    fn state_names(&self) -> &[&'static str];

    /// Updates values with `step.scale` times a gradient. `state` has one array per name. All arrays have the length of `values`.
    ///
    /// Returns the largest magnitude of the new values, or NaN if some of the state is not finite: [`largest`]. The result must have the same bits on
    /// all ranks.
    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32;

    /// Validates the constants.
    ///
    /// # Errors
    /// A text that names the invalid constant and the expected values.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the learning rate for a global batch that is `factor` times as large as the batch for which `rate` was chosen. By default it grows
    /// with the square root (Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022, section 4).
    fn scaled_rate(&self, rate: f64, factor: f64) -> f64 {
        rate * factor.sqrt()
    }

    /// Returns whether an update needs all elements of a parameter, for example for its norm. If so, ranks cannot divide a parameter among them.
    fn needs_whole(&self) -> bool {
        false
    }

    /// Returns the rule for updates by single shares of a step, and the factor of their gradients and of weight decay. The updates by all shares must
    /// change state and parameters as one step does. Asynchronous parameter servers need it.
    fn per_share(&self, _shares: usize) -> Option<(Arc<dyn UpdateRule>, f64)> {
        None
    }

    /// Returns the constants in the form that a [`NamedRule`](super::NamedRule) parses, such as `beta1=0.9,beta2=0.99`. A run can resume only from
    /// checkpoints with the same constants.
    fn constants(&self) -> String {
        format!("{self:?}")
    }

    /// Returns the description of the rule with a weight decay in checkpoints of the old format, from which runs can still resume.
    fn describe(&self, weight_decay: f32) -> String {
        format!("{self:?}, weight decay {weight_decay:?}")
    }

    /// Returns the rule as operations of the framework, for parameters on a GPU. For candle, this is a `unisono_candle::TensorForm`.
    fn on_tensors(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// Returns constants in the form that a [`NamedRule`](super::NamedRule) parses.
pub(super) fn constants(rule: &impl Serialize) -> String {
    let json = serde_json::to_string(rule).expect("constants are numbers and names");
    json.trim_matches(['{', '}']).replace('"', "").replace(':', "=")
}

/// The numbers of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepInfo {
    /// The number of the step, from 1.
    pub number: u64,
    /// The factor of the gradient, which is a sum over samples.
    pub scale: f32,
    /// The learning rate of this parameter.
    pub rate: f32,
    /// The weight decay of this parameter.
    pub decay: f32,
}

/// The factors of a parameter's weight decay and learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factors {
    /// The factor of weight decay.
    pub decay: f32,
    /// The factor of the learning rate.
    pub rate: f32,
}

/// The factors of a parameter by its name and shape.
pub type FactorRule = dyn Fn(&str, &[usize]) -> Factors + Send + Sync;

impl Default for Factors {
    /// Returns factors of 1.
    fn default() -> Self {
        Self { decay: 1.0, rate: 1.0 }
    }
}

impl Factors {
    /// The factors of a parameter that does not decay.
    pub const NO_DECAY: Self = Self { decay: 0.0, rate: 1.0 };

    /// Returns the usual factors by a parameter's shape. Vectors (biases, gains) do not decay, because they have few elements and do not overfit.
    pub fn of_shape(shape: &[usize]) -> Self {
        if shape.len() < 2 { Self::NO_DECAY } else { Self::default() }
    }
}

/// Returns the largest magnitude in these arrays: all values, and the state that must stay finite. NaN exceeds all numbers.
pub fn largest(arrays: &[&[f32]]) -> f32 {
    Level::best().run(Largest(arrays))
}

/// Validates a number from 0 to 1. `may_be_one` permits 1 itself.
pub(super) fn check_fraction(name: &str, value: f32, may_be_one: bool) -> Result<(), String> {
    let is_valid = (0.0..1.0).contains(&value) || (may_be_one && value == 1.0);
    let most = if may_be_one { "1" } else { "below 1" };
    if is_valid { Ok(()) } else { Err(format!("the {name} is {value}: it must be from 0 to {most}")) }
}
