//! The interface of an optimizer: how it updates a parameter, and what it remembers.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;

use unisono::internals::Level;

use super::passes::Largest;

/// An update rule over flat memory. Implement it for a custom optimizer, and pass it to [`OptimizerSettings::new`].
///
/// Its state is a few arrays, each with one number per element of a parameter, which begin as zeros. They are saved in checkpoints
/// under their names. If the optimizer is sharded, a rank passes the elements that it updates, and their state.
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
    /// Returns the name in messages, in lower case.
    fn name(&self) -> &'static str;

    /// Returns the names of its arrays of state in checkpoints.
    fn state_names(&self) -> &[&'static str];

    /// Updates values with `step.scale` times a gradient. `state` has one array per name. All arrays have the length of `values`.
    ///
    /// Returns the largest magnitude of the new values, or NaN if some of the state is not finite: [`largest`]. All ranks must compute
    /// the same bits.
    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32;

    /// Validates the constants.
    ///
    /// # Errors
    /// Which constant is invalid, and what was expected.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the learning rate for a global batch that is `factor` times as large as the one that `rate` is for. By default it
    /// grows with the square root (Malladi et al., "On the SDEs and scaling rules for adaptive gradient algorithms", 2022, section
    /// 4).
    fn scaled_rate(&self, rate: f64, factor: f64) -> f64 {
        rate * factor.sqrt()
    }

    /// Returns whether an update must have all elements of a parameter, as for its norm. Then ranks cannot divide parameters
    /// among them.
    fn needs_whole(&self) -> bool {
        false
    }

    /// Returns the rule for updates by single shares of a step, and the factor of their gradients and of weight decay, such that the
    /// updates by all shares change state and parameters as one step does. Asynchronous parameter servers need it.
    fn per_share(&self, _shares: usize) -> Option<(Arc<dyn UpdateRule>, f64)> {
        None
    }

    /// Returns the constants as a [`NamedRule`](super::NamedRule) takes them, such as `beta1=0.9,beta2=0.99`. A run can resume from checkpoints
    /// with the same constants.
    fn constants(&self) -> String {
        format!("{self:?}")
    }

    /// Describes the rule with a weight decay, as checkpoints did before they had its constants, and runs can still resume from those.
    fn describe(&self, weight_decay: f32) -> String {
        format!("{self:?}, weight decay {weight_decay:?}")
    }

    /// Returns the rule as operations of the framework, for parameters on a GPU: for candle, a
    /// `unisono_candle::TensorForm`.
    fn on_tensors(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// Constants as a [`NamedRule`](super::NamedRule) takes them.
pub(super) fn constants(rule: &impl Serialize) -> String {
    let json = serde_json::to_string(rule).expect("constants are numbers and names");
    json.trim_matches(['{', '}']).replace('"', "").replace(':', "=")
}

/// The numbers of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepInfo {
    /// The number of the step, from 1.
    pub number: u64,
    /// The factor of the gradient, which is a sum.
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
    /// One each.
    fn default() -> Self {
        Self { decay: 1.0, rate: 1.0 }
    }
}

impl Factors {
    /// The factors of a parameter that does not decay.
    pub const NO_DECAY: Self = Self { decay: 0.0, rate: 1.0 };

    /// Returns the usual factors by a parameter's shape. Vectors (biases, gains) do not decay: they have few elements, and do not
    /// overfit.
    pub fn of_shape(shape: &[usize]) -> Self {
        if shape.len() < 2 { Self::NO_DECAY } else { Self::default() }
    }
}

/// Returns the largest magnitude in these arrays: of all values and of the state that must stay finite. NaN exceeds all
/// numbers.
pub fn largest(arrays: &[&[f32]]) -> f32 {
    let mut bits = [0_u32];
    for array in arrays {
        Level::best().compiled::<Largest>()(bytemuck::cast_slice_mut(&mut bits), array);
    }
    f32::from_bits(bits[0])
}

/// Validates a number from 0 to 1, or to below 1.
pub(super) fn check_fraction(name: &str, value: f32, may_be_one: bool) -> Result<(), String> {
    let is_valid = (0.0..1.0).contains(&value) || (may_be_one && value == 1.0);
    let most = if may_be_one { "1" } else { "below 1" };
    if is_valid { Ok(()) } else { Err(format!("the {name} is {value}: it must be from 0 to {most}")) }
}
