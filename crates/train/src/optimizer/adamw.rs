//! Adam with decoupled weight decay.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unisono::internals::{Level, Loop};

use super::passes::magnitude;
use super::rule::{StepInfo, UpdateRule, check_fraction, constants};

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2), with the constants of PyTorch's `AdamW`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// The decay rate of the mean of gradients.
    pub beta1: f32,
    /// The decay rate of the mean of their squares.
    pub beta2: f32,
    /// The term that keeps a step finite if all gradients were zero.
    pub epsilon: f32,
    /// Whether to divide by the largest mean of squares so far (Reddi et al., "On the convergence of Adam and beyond", 2018).
    pub amsgrad: bool,
}

impl Default for AdamW {
    /// Returns the usual constants.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, amsgrad: false }
    }
}

impl UpdateRule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn constants(&self) -> String {
        constants(self)
    }

    fn state_names(&self) -> &[&'static str] {
        if self.amsgrad { &["mean", "square", "largest square"] } else { &["mean", "square"] }
    }

    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32 {
        let adam = Adam::new([self.beta1, self.beta2], self.epsilon, step.number);
        let level = Level::best();
        let [mean, square, most @ ..] = state else { unreachable!("it has two names, or three") };
        match most {
            [] => level.run(AdamStep::<false> { values, gradient, mean, square, most: &mut [], adam, step }),
            [most, ..] => level.run(AdamStep::<true> { values, gradient, mean, square, most, adam, step }),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_constants([self.beta1, self.beta2], self.epsilon)
    }

    fn per_share(&self, shares: usize) -> Option<(Arc<dyn UpdateRule>, f64)> {
        let root = |beta: f32| f64::from(beta).powf(1.0 / shares as f64) as f32;
        Some((Arc::new(Self { beta1: root(self.beta1), beta2: root(self.beta2), ..*self }), 1.0))
    }

    /// Returns the form that all checkpoints of AdamW use, which includes the constants of SGD.
    fn describe(&self, weight_decay: f32) -> String {
        let Self { beta1, beta2, epsilon, amsgrad } = self;
        let amsgrad = if *amsgrad { ", amsgrad" } else { "" };
        format!(
            "OptimizerSettings {{ kind: AdamW, momentum: 0.9, nesterov: false, weight_decay: {weight_decay:?}, \
             betas: ({beta1:?}, {beta2:?}), epsilon: {epsilon:?}{amsgrad} }}"
        )
    }
}

pub(super) fn check_constants(betas: [f32; 2], epsilon: f32) -> Result<(), String> {
    check_fraction("beta1", betas[0], false)?;
    check_fraction("beta2", betas[1], false)?;
    check_fraction("epsilon", epsilon, true)
}

/// The constants of a step.
#[derive(Debug, Clone, Copy)]
pub struct Adam {
    /// The fractions of the two means that are kept.
    pub betas: [f32; 2],
    /// The term added to the square root of the second mean.
    pub epsilon: f32,
    /// The factors that correct the bias of the two means, which started at zero.
    pub unbiased: [f32; 2],
}

impl Adam {
    /// Returns the constants of this step, counted from 1.
    pub fn new(betas: [f32; 2], epsilon: f32, step: u64) -> Self {
        // In `f64`, because an `f32` has too few digits for a beta near 1.
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        let unbiased = |beta: f32| (1.0 / (1.0 - f64::from(beta).powi(step))) as f32;
        Self { betas, epsilon, unbiased: betas.map(unbiased) }
    }

    /// Adds a gradient to the two means.
    #[inline(always)]
    pub(super) fn add(self, gradient: f32, mean: &mut f32, square: &mut f32) {
        let [beta1, beta2] = self.betas;
        *mean = beta1 * *mean + (1.0 - beta1) * gradient;
        *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
    }

    /// Returns the step before weight decay.
    #[inline(always)]
    pub(super) fn step(self, mean: f32, square: f32) -> f32 {
        mean * self.unbiased[0] / ((square * self.unbiased[1]).sqrt() + self.epsilon)
    }
}

/// An update of the values. The result is the largest [magnitude] of the new values. It is a NaN if a mean of squares is not finite, which the
/// value itself would not show.
pub(super) struct AdamStep<'a, const AMSGRAD: bool> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) mean: &'a mut [f32],
    pub(super) square: &'a mut [f32],
    /// The largest means of squares, with AMSGrad; otherwise empty.
    pub(super) most: &'a mut [f32],
    pub(super) adam: Adam,
    pub(super) step: StepInfo,
}

impl<const AMSGRAD: bool> Loop<f32> for AdamStep<'_, AMSGRAD> {
    #[inline(always)]
    fn run(self) -> f32 {
        let Self { values, gradient, mean, square, most, adam, step } = self;
        let StepInfo { scale, rate, decay, .. } = step;
        let each = values.iter_mut().zip(gradient).zip(mean).zip(square);
        let mut largest = 0;
        if AMSGRAD {
            for ((((value, gradient), mean), square), most) in each.zip(most) {
                adam.add(scale * gradient, mean, square);
                *most = most.max(*square);
                *value -= rate * (adam.step(*mean, *most) + decay * *value);
                largest = largest.max(magnitude(*value)).max(magnitude(0.0 * *square));
            }
        } else {
            for (((value, gradient), mean), square) in each {
                adam.add(scale * gradient, mean, square);
                *value -= rate * (adam.step(*mean, *square) + decay * *value);
                // Zero times infinity is NaN.
                largest = largest.max(magnitude(*value)).max(magnitude(0.0 * *square));
            }
        }
        f32::from_bits(largest)
    }
}
