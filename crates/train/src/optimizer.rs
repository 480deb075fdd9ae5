//! Optimizers over flat memory: one pass over a parameter, its gradient and its optimizer state.
//!
//! The values of a parameter stay in the framework's memory; the optimizer has its own memory for its state,
//! in the order of the parameters.
//!
//! ```
//! use unisono_train::OptimizerKind;
//! use unisono_train::optimizer::{Optimizer, OptimizerSettings};
//!
//! let settings = OptimizerSettings { momentum: 0.0, ..OptimizerSettings::new(OptimizerKind::Sgd) };
//! let mut optimizer = Optimizer::new(settings, [(2, true)])?;
//! let mut values = [1.0, 2.0];
//! optimizer.begin_step();
//! // The gradient is a sum over four samples.
//! optimizer.update(0, &mut values, &[4.0, -8.0], 0.25, 0.5)?;
//! assert_eq!(values, [0.5, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod passes;
mod state;
#[cfg(all(feature = "candle", any(test, feature = "cuda")))]
pub(super) mod tensors;

use std::fmt;
use std::ops::Range;

use unisono_collectives::named;

use unisono::Registered;
use unisono::internals::Level;

use passes::{Adam, AdamStep, AdamW, LANES, Largest, Sgd, SgdStep, SquareSum};
pub use state::StateError;

/// The kind of optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum; weight decay is part of the gradient.
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2).
    AdamW,
}

impl OptimizerKind {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Sgd, Self::AdamW];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::AdamW => "adamw",
        }
    }

    /// The state per element, by its names in checkpoints.
    pub(super) fn moments(self) -> &'static [&'static str] {
        match self {
            Self::Sgd => &["velocity"],
            Self::AdamW => &["mean", "square"],
        }
    }
}

named!(OptimizerKind, "optimizer");

/// An optimizer's constants. Each kind uses those that concern it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerSettings {
    /// The kind of optimizer.
    pub kind: OptimizerKind,
    /// SGD: the fraction of the velocity that is kept from step to step.
    pub momentum: f32,
    /// SGD: whether to use Nesterov momentum.
    pub nesterov: bool,
    /// The weight decay. Vectors (biases, gains) do not decay: they have few elements, and do not overfit.
    pub weight_decay: f32,
    /// AdamW: the decay rates of the means of gradients and of their squares.
    pub betas: (f32, f32),
    /// AdamW: keeps a step finite if all gradients were zero.
    pub epsilon: f32,
}

impl OptimizerSettings {
    /// The customary constants, without weight decay.
    pub fn new(kind: OptimizerKind) -> Self {
        Self { kind, momentum: 0.9, nesterov: false, weight_decay: 0.0, betas: (0.9, 0.999), epsilon: 1e-8 }
    }
}

/// The largest magnitude that a parameter may have: training that exceeds it has diverged, since the square of such a value exceeds the
/// range of `f32`.
pub const LARGEST_VALUE: f32 = 18_446_744_073_709_551_616.0;

/// A parameter is not finite or exceeds [`LARGEST_VALUE`], or its optimizer state is not finite.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a parameter has become {largest:e}: expected a finite value of at most {LARGEST_VALUE:e}")]
pub struct Exploded {
    /// The largest magnitude of its values; NaN if a value is, or if the optimizer state is not finite.
    pub largest: f32,
}

impl Exploded {
    /// Checks these values.
    ///
    /// # Errors
    /// [`Exploded`] if one is not finite, or too large.
    pub(crate) fn check(values: &[f32]) -> Result<(), Self> {
        let mut largest = [0_u32];
        Level::best().compiled::<Largest>()(bytemuck::cast_slice_mut(&mut largest), values);
        Self::check_largest(f32::from_bits(largest[0]))
    }

    fn check_largest(largest: f32) -> Result<(), Self> {
        // False for a NaN.
        if largest <= LARGEST_VALUE { Ok(()) } else { Err(Self { largest }) }
    }
}

/// An optimizer and its state for some parameters.
pub struct Optimizer {
    settings: OptimizerSettings,
    parameters: Vec<Parameter>,
    /// One array for each name in [`OptimizerKind::moments`].
    moments: Vec<Registered<f32>>,
    steps: u64,
}

/// The description of a parameter.
#[derive(Debug)]
struct Parameter {
    /// The offset of its part in every array of moments.
    range: Range<usize>,
    is_vector: bool,
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
    /// An optimizer with zero state, for parameters with these numbers of elements; `true` marks vectors, which do not
    /// decay.
    ///
    /// # Errors
    /// [`unisono::Error::Memory`] if the system lacks memory.
    pub fn new(
        settings: OptimizerSettings,
        parameters: impl IntoIterator<Item = (usize, bool)>,
    ) -> unisono::Result<Self> {
        let mut end = 0;
        let place = |(count, is_vector)| {
            let start = end;
            end += count;
            Parameter { range: start..end, is_vector }
        };
        let parameters: Vec<_> = parameters.into_iter().map(place).collect();
        // Allocated now, in huge pages (although no other rank reads it), so that the first step is as fast as the others.
        let memory = |_| Registered::local(end);
        let moments = settings.kind.moments().iter().map(memory).collect::<unisono::Result<_>>()?;
        Ok(Self { settings, parameters, moments, steps: 0 })
    }

    /// Its constants.
    pub fn settings(&self) -> &OptimizerSettings {
        &self.settings
    }

    /// The number of steps begun.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Starts a step, in which each parameter may be updated, in any order.
    pub fn begin_step(&mut self) {
        self.steps += 1;
    }

    /// Updates parameter `index` with `scale` times `gradient`, at the learning rate `rate`. `scale` is one
    /// over the number of samples in the sum, times [`clip_factor`].
    ///
    /// # Errors
    /// [`Exploded`] if the parameter is not finite afterwards, or too large. It is updated all the same.
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
        let Parameter { range, is_vector } = &self.parameters[index];
        let (found, expected) = ((values.len(), gradient.len()), range.len());
        assert!(
            found == (expected, expected),
            "parameter {index} has {expected} elements, but is given {} values and {} of a gradient",
            found.0,
            found.1
        );
        assert!(self.steps > 0, "parameter {index} is updated before a step has begun");

        let OptimizerSettings { momentum, nesterov, weight_decay, .. } = self.settings;
        let decay = if *is_vector { 0.0 } else { weight_decay };
        let (level, values) = (Level::best(), bytemuck::cast_slice_mut(values));
        let mut bits = 0;
        let largest = &mut bits;
        match &mut self.moments[..] {
            [velocity] => {
                let velocity = &mut velocity[range.clone()];
                let pass =
                    if nesterov { level.compiled::<Sgd<true>>() } else { level.compiled::<Sgd<false>>() };
                pass(values, SgdStep { gradient, velocity, scale, momentum, decay, rate, largest });
            }
            [mean, square] => {
                let (mean, square) = (&mut mean[range.clone()], &mut square[range.clone()]);
                let adam = Adam::new(&self.settings, self.steps);
                level.compiled::<AdamW>()(
                    values,
                    AdamStep { gradient, mean, square, adam, scale, decay, rate, largest },
                );
            }
            moments => unreachable!("no optimizer remembers {} numbers of an element", moments.len()),
        }
        Exploded::check_largest(f32::from_bits(bits))
    }
}

/// The sum of the squares of a gradient's elements, for its norm.
///
/// The same elements in the same order have the same sum on every processor. It is computed in `f64`, where the
/// square of an `f32` is exact and cannot overflow.
///
/// ```
/// let norm = unisono_train::optimizer::square_sum(&[3.0, -4.0]).sqrt();
/// assert_eq!(norm, 5.0);
/// ```
pub fn square_sum(gradient: &[f32]) -> f64 {
    square_sum_at(Level::best(), gradient)
}

fn square_sum_at(level: Level, gradient: &[f32]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    level.compiled::<SquareSum>()(bytemuck::cast_slice_mut(&mut sums), gradient);
    sums.into_iter().sum()
}

/// The factor that scales a gradient of this norm to a norm of at most `max_norm`.
///
/// It is 1 for a norm of NaN: the gradient is NaN too, and so become the parameters. (An
/// infinite norm has the factor 0, which makes NaN of the infinite elements.)
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
