//! Optimizers over flat memory: one pass over a parameter, its gradient and its optimizer state.
//!
//! The values of a parameter stay in the framework's memory. The optimizer allocates memory for its state, in the order of the parameters.
//!
//! ```
//! use unisono_train::optimizer::{Factors, Optimizer, OptimizerSettings, Sgd};
//!
//! let settings = OptimizerSettings::new(Sgd { momentum: 0.0, nesterov: false });
//! let mut optimizer = Optimizer::new(settings, [(2, Factors::NO_DECAY)])?;
//! let mut values = [1.0, 2.0];
//! optimizer.begin_step();
//! // The gradient is a sum over four samples.
//! optimizer.update(0, &mut values, &[4.0, -8.0], 0.25, 0.5)?;
//! assert_eq!(values, [0.5, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod adamw;
pub(crate) mod averaged;
mod catalogue;
mod lamb;
mod lion;
mod passes;
mod rule;
mod sgd;

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use unisono::Registered;
use unisono::internals::Level;

use crate::TrainError;
pub use crate::error::LARGEST_VALUE;

pub use adamw::AdamW;
pub use averaged::Averaged;
pub use catalogue::{NamedRule, names};
pub use lamb::Lamb;
pub use lion::Lion;
use passes::SquareSum;
pub use rule::{FactorRule, Factors, StepInfo, UpdateRule, largest};
pub use sgd::Sgd;

/// An optimizer with its weight decay and the factors of parameters.
#[derive(Clone)]
pub struct OptimizerSettings {
    /// The rule that updates parameters.
    pub rule: Arc<dyn UpdateRule>,
    /// The weight decay.
    pub weight_decay: f32,
    /// The factors of a parameter's weight decay and learning rate by its name and shape. The default is [`Factors::of_shape`]. They must be the same
    /// on all ranks, and in a run that resumes.
    pub factors: Arc<FactorRule>,
}

impl OptimizerSettings {
    /// Returns this optimizer, without weight decay.
    pub fn new(rule: impl UpdateRule) -> Self {
        Self::from(Arc::new(rule) as Arc<dyn UpdateRule>)
    }

    /// Returns whether it keeps an average of the parameters ([`Averaged`]).
    pub fn is_averaged(&self) -> bool {
        self.rule.state_names().contains(&averaged::AVERAGE)
    }

    /// Checks the constants of the rule and the names of its state.
    ///
    /// # Errors
    /// A text that names the invalid constant or name, and what is expected.
    pub fn check(&self) -> Result<(), String> {
        self.rule.check()?;
        let (rule, names, mut found) = (self.rule.name(), self.rule.state_names(), HashSet::new());
        if let Some(name) = names.iter().find(|&name| !found.insert(name)) {
            return Err(format!(
                "two states of {rule} are called `{name}`: expected a different name for each"
            ));
        }
        let keeps_average = (&*self.rule as &dyn Any).is::<Averaged>();
        if self.is_averaged() && !keeps_average {
            let name = averaged::AVERAGE;
            return Err(format!(
                "a state of {rule} is called `{name}`, the name of an average of the parameters: rename it"
            ));
        }
        Ok(())
    }

    /// Returns a description of the rule and its weight decay, which is stored in checkpoints of the run.
    pub fn describe(&self) -> String {
        self.rule.describe(self.weight_decay)
    }
}

impl From<Arc<dyn UpdateRule>> for OptimizerSettings {
    /// Returns this optimizer, without weight decay.
    fn from(rule: Arc<dyn UpdateRule>) -> Self {
        Self { rule, weight_decay: 0.0, factors: Arc::new(|_, shape| Factors::of_shape(shape)) }
    }
}

impl fmt::Debug for OptimizerSettings {
    /// Omits the factors, which are code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, weight_decay, .. } = self;
        let mut described = f.debug_struct("OptimizerSettings");
        described.field("rule", rule).field("weight_decay", weight_decay).finish_non_exhaustive()
    }
}

/// A parameter is not finite or exceeds [`LARGEST_VALUE`], or its optimizer state is not finite.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a parameter has become {largest:e}: expected a finite value of at most {LARGEST_VALUE:e}")]
pub struct Exploded {
    /// The largest magnitude of its values. It is NaN if a value is NaN, or if the optimizer state is not finite.
    pub largest: f32,
}

impl Exploded {
    pub(crate) fn check(values: &[f32]) -> Result<(), Self> {
        Self::check_largest(largest(&[values]))
    }

    fn check_largest(largest: f32) -> Result<(), Self> {
        // False for a NaN.
        if largest <= LARGEST_VALUE { Ok(()) } else { Err(Self { largest }) }
    }
}

/// Overwrites the elements of an entry of [`Optimizer::state`], by its name and parameter.
pub type Restore<'a, E = TrainError> = &'a mut dyn FnMut(&'static str, usize, &mut [f32]) -> Result<(), E>;

/// An optimizer and its state for some parameters.
pub struct Optimizer {
    settings: OptimizerSettings,
    parameters: Vec<Parameter>,
    /// One array for each of [`UpdateRule::state_names`].
    moments: Vec<Registered<f32>>,
    steps: u64,
}

#[derive(Debug)]
struct Parameter {
    /// The range of its part in every array of moments.
    range: Range<usize>,
    factors: Factors,
}

impl fmt::Debug for Optimizer {
    /// Omits the state, which may be gigabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, parameters, steps, .. } = self;
        f.debug_struct("Optimizer")
            .field("settings", settings)
            .field("parameters", &parameters.len())
            .field("steps", steps)
            .finish_non_exhaustive()
    }
}

impl Optimizer {
    /// Creates an optimizer with zero state, for parameters with these numbers of elements and factors.
    ///
    /// # Errors
    /// [`unisono::Error::Memory`] if the system lacks memory.
    pub fn new(
        settings: OptimizerSettings,
        parameters: impl IntoIterator<Item = (usize, Factors)>,
    ) -> unisono::Result<Self> {
        let mut end = 0;
        let place = |(count, factors)| {
            let start = end;
            end += count;
            Parameter { range: start..end, factors }
        };
        let parameters: Vec<_> = parameters.into_iter().map(place).collect();
        // Allocated now, in huge pages, so that the first step is as fast as the others. No other rank reads it.
        let memory = |_| Registered::local(end);
        let moments = settings.rule.state_names().iter().map(memory).collect::<unisono::Result<_>>()?;
        Ok(Self { settings, parameters, moments, steps: 0 })
    }

    /// Returns the settings of the optimizer.
    pub fn settings(&self) -> &OptimizerSettings {
        &self.settings
    }

    /// Returns the number of steps begun.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Starts a step, in which the parameters may be updated in any order.
    pub fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Updates parameter `index` with `scale` times `gradient`, at the learning rate `rate`. `scale` is the reciprocal of the number of samples in
    /// the sum, times [`clip_factor`].
    ///
    /// # Errors
    /// [`Exploded`] if the parameter is not finite afterwards, or too large. The parameter is updated in this case too.
    ///
    /// # Panics
    /// If there is no such parameter, if its values or its gradient have another number of elements, or if
    /// no step has begun.
    pub fn update(
        &mut self,
        index: usize,
        values: &mut [f32],
        gradient: &[f32],
        scale: f32,
        rate: f32,
    ) -> Result<(), Exploded> {
        let count = self.parameters.len();
        assert!(index < count, "parameter {index} is updated, but there are only {count}");
        let Parameter { range, factors } = &self.parameters[index];
        let (found, expected) = ((values.len(), gradient.len()), range.len());
        assert!(
            found == (expected, expected),
            "parameter {index} has {expected} elements, but is given {} values and {} of a gradient",
            found.0,
            found.1
        );
        assert!(self.steps > 0, "parameter {index} is updated before a step has begun");

        let OptimizerSettings { rule, weight_decay, .. } = &self.settings;
        let (rate, decay) = (rate * factors.rate, weight_decay * factors.decay);
        let step = StepInfo { number: self.steps, scale, rate, decay };
        let mut state: Vec<_> = self.moments.iter_mut().map(|moment| &mut moment[range.clone()]).collect();
        Exploded::check_largest(match rule.needs_whole() {
            true => rule.update(step, values, gradient, &mut state),
            false => update_on_threads(&**rule, step, values, gradient, state),
        })
    }

    /// Returns the state as entries of a name, a parameter, and one number per element of the parameter. [`Optimizer::steps`] is part of the state
    /// too.
    pub fn state(&self) -> impl Iterator<Item = (&'static str, usize, &[f32])> {
        let moments = self.settings.rule.state_names().iter().zip(&self.moments);
        moments.flat_map(move |(&name, moment)| {
            let parameters = self.parameters.iter().enumerate();
            parameters.map(move |(index, parameter)| (name, index, &moment[parameter.range.clone()]))
        })
    }

    /// Restores the state after this many steps: calls `write` with each entry of [`Optimizer::state`], to overwrite its elements.
    ///
    /// # Errors
    /// The first error of `write`. Entries written before it keep their new elements.
    pub fn restore<E>(&mut self, steps: u64, write: Restore<'_, E>) -> Result<(), E> {
        for (&name, moment) in self.settings.rule.state_names().iter().zip(&mut self.moments) {
            for (index, Parameter { range, .. }) in self.parameters.iter().enumerate() {
                write(name, index, &mut moment[range.clone()])?;
            }
        }
        self.steps = steps;
        Ok(())
    }
}

/// The elements that a thread updates at a time.
const BLOCK: usize = 1 << 16;

/// Updates values by an elementwise rule on the threads of this process. The bits do not depend on the number of threads.
fn update_on_threads(
    rule: &dyn UpdateRule,
    step: StepInfo,
    values: &mut [f32],
    gradient: &[f32],
    mut state: Vec<&mut [f32]>,
) -> f32 {
    if values.len() <= BLOCK || rayon::current_num_threads() == 1 {
        return rule.update(step, values, gradient, &mut state);
    }
    let mut of_state: Vec<_> = state.into_iter().map(|state| state.chunks_mut(BLOCK)).collect();
    let blocks = values.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK));
    let blocks: Vec<(_, Vec<_>)> =
        blocks.map(|block| (block, of_state.iter_mut().filter_map(Iterator::next).collect())).collect();
    let updated = blocks
        .into_par_iter()
        .map(|((values, gradient), mut state)| rule.update(step, values, gradient, &mut state));
    // A NaN is propagated.
    updated.reduce(|| 0.0, |one, other| if other.is_nan() || other > one { other } else { one })
}

/// Returns the sum of the squares of a gradient's elements, for its norm.
///
/// Equal elements in equal order have the same sum on every processor. The sum is in `f64`, in which the square of an `f32` is exact and finite.
///
/// ```
/// let norm = unisono_train::optimizer::square_sum(&[3.0, -4.0]).sqrt();
/// assert_eq!(norm, 5.0);
/// ```
pub fn square_sum(gradient: &[f32]) -> f64 {
    Level::best().run(SquareSum(gradient))
}

/// Returns the factor that scales a gradient of this norm to a norm of at most `max_norm`.
///
/// The factor is 1 for a norm of NaN. The gradient is then NaN too, and the parameters become NaN. An infinite norm has the factor 0, which turns the
/// infinite elements into NaN.
///
/// ```
/// use unisono_train::optimizer::clip_factor;
/// assert_eq!((clip_factor(4.0, 1.0), clip_factor(0.5, 1.0)), (0.25, 1.0));
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> f32 {
    if norm > max_norm { (max_norm / norm) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests;
