//! LAMB, for large batches.

use serde::{Deserialize, Serialize};

use super::adamw::{Adam, check_constants};
use super::rule::{StepInfo, UpdateRule, constants, largest};
use super::square_sum;

/// LAMB (You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020, algorithm 2): steps of AdamW, scaled to the
/// norm of each parameter. If the parameter or its step is zero, the step is not scaled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lamb {
    /// The decay rate of the mean of gradients.
    pub beta1: f32,
    /// The decay rate of the mean of their squares.
    pub beta2: f32,
    /// The term that keeps a step finite if all gradients were zero.
    pub epsilon: f32,
}

impl Default for Lamb {
    /// Returns the constants of the paper.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-6 }
    }
}

impl UpdateRule for Lamb {
    fn name(&self) -> &'static str {
        "lamb"
    }

    fn constants(&self) -> String {
        constants(self)
    }

    fn state_names(&self) -> &[&'static str] {
        &["mean", "square"]
    }

    fn update(
        &self,
        StepInfo { number, scale, rate, decay }: StepInfo,
        values: &mut [f32],
        gradient: &[f32],
        state: &mut [&mut [f32]],
    ) -> f32 {
        let adam = Adam::new([self.beta1, self.beta2], self.epsilon, number);
        let [mean, square] = state else { unreachable!("it has two names") };
        let mut squares = 0.0;
        for (((value, gradient), mean), square) in
            values.iter().zip(gradient).zip(mean.iter_mut()).zip(square.iter_mut())
        {
            adam.add(scale * gradient, mean, square);
            squares += f64::from(adam.step(*mean, *square) + decay * value).powi(2);
        }
        let ratio = (square_sum(values) / squares).sqrt() as f32;
        // Also false for a NaN, which the check of the values detects.
        let rate = if ratio > 0.0 && ratio.is_finite() { rate * ratio } else { rate };
        for ((value, mean), square) in values.iter_mut().zip(mean.iter()).zip(square.iter()) {
            *value -= rate * (adam.step(*mean, *square) + decay * *value);
        }
        // An infinite mean of squares makes a step of zero, so the values do not show it.
        if square.iter().all(|square| square.is_finite()) { largest(&[values]) } else { f32::NAN }
    }

    fn check(&self) -> Result<(), String> {
        check_constants([self.beta1, self.beta2], self.epsilon)
    }

    fn needs_whole(&self) -> bool {
        true
    }
}
