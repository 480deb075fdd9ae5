//! Lion, which steps by the sign of the gradient.

use serde::{Deserialize, Serialize};

use super::rule::{StepInfo, UpdateRule, check_fraction, constants, largest};

/// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2). It needs a learning rate 3 to 10 times smaller than
/// AdamW's, and a weight decay larger by the same factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// The weight of the mean in the direction of a step.
    pub beta1: f32,
    /// The decay rate of the mean of gradients.
    pub beta2: f32,
}

impl Default for Lion {
    /// Returns the constants of the paper.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.99 }
    }
}

impl UpdateRule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn constants(&self) -> String {
        constants(self)
    }

    fn state_names(&self) -> &[&'static str] {
        &["mean"]
    }

    fn update(
        &self,
        StepInfo { scale, rate, decay, .. }: StepInfo,
        values: &mut [f32],
        gradient: &[f32],
        state: &mut [&mut [f32]],
    ) -> f32 {
        let Self { beta1, beta2 } = *self;
        for ((value, gradient), mean) in values.iter_mut().zip(gradient).zip(&mut *state[0]) {
            let gradient = scale * gradient;
            let direction = beta1 * *mean + (1.0 - beta1) * gradient;
            // Zero for zero, as in the paper. `signum` returns one.
            let sign = f32::from(i8::from(direction > 0.0) - i8::from(direction < 0.0));
            *value -= rate * (sign + decay * *value);
            *mean = beta2 * *mean + (1.0 - beta2) * gradient;
        }
        // The sign of a mean hides that it is not finite, so the mean is checked too.
        largest(&[values, state[0]])
    }

    fn check(&self) -> Result<(), String> {
        check_fraction("beta1", self.beta1, false)?;
        check_fraction("beta2", self.beta2, false)
    }
}
