//! Stochastic gradient descent with momentum.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unisono::internals::{Level, Loop};

use super::passes::magnitude;
use super::rule::{StepInfo, UpdateRule, check_fraction, constants};

/// Stochastic gradient descent with momentum. Weight decay is part of the gradient.
///
/// v = momentum v + (g + decay w), then w −= rate v, or with Nesterov momentum w −= rate (g + decay w + momentum v). As in PyTorch,
/// the learning rate is not part of the velocity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    /// The fraction of the velocity that is kept from step to step.
    pub momentum: f32,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

impl Default for Sgd {
    /// Returns a momentum of 0.9.
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false }
    }
}

impl UpdateRule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn constants(&self) -> String {
        constants(self)
    }

    fn state_names(&self) -> &[&'static str] {
        &["velocity"]
    }

    fn update(&self, step: StepInfo, values: &mut [f32], gradient: &[f32], state: &mut [&mut [f32]]) -> f32 {
        let [velocity] = state else { unreachable!("it has one name") };
        let (level, momentum) = (Level::best(), self.momentum);
        match self.nesterov {
            true => level.run(SgdStep::<true> { values, gradient, velocity, momentum, step }),
            false => level.run(SgdStep::<false> { values, gradient, velocity, momentum, step }),
        }
    }

    fn check(&self) -> Result<(), String> {
        check_fraction("momentum", self.momentum, true)
    }

    /// Scales linearly (Goyal et al., "Accurate, large minibatch SGD", 2017, section 2.1).
    fn scaled_rate(&self, rate: f64, factor: f64) -> f64 {
        rate * factor
    }

    fn per_share(&self, shares: usize) -> Option<(Arc<dyn UpdateRule>, f64)> {
        let momentum = f64::from(self.momentum);
        let root = momentum.powf(1.0 / shares as f64);
        // A momentum of 1 has the limit of the quotient.
        let scale = if momentum < 1.0 { (1.0 - root) / (1.0 - momentum) } else { 1.0 / shares as f64 };
        Some((Arc::new(Self { momentum: root as f32, ..*self }), scale))
    }

    /// Returns the form that all checkpoints of SGD use, which includes the constants of AdamW.
    fn describe(&self, weight_decay: f32) -> String {
        let Self { momentum, nesterov } = self;
        format!(
            "OptimizerSettings {{ kind: Sgd, momentum: {momentum:?}, nesterov: {nesterov}, \
             weight_decay: {weight_decay:?}, betas: (0.9, 0.999), epsilon: 1e-8 }}"
        )
    }
}

/// An update of the values. The result is the largest [magnitude] of the new values. If a velocity is not finite, neither is its value.
pub(super) struct SgdStep<'a, const NESTEROV: bool> {
    pub(super) values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    pub(super) velocity: &'a mut [f32],
    pub(super) momentum: f32,
    pub(super) step: StepInfo,
}

impl<const NESTEROV: bool> Loop<f32> for SgdStep<'_, NESTEROV> {
    #[inline(always)]
    fn run(self) -> f32 {
        let Self { values, gradient, velocity, momentum, step: StepInfo { scale, rate, decay, .. } } = self;
        let mut largest = 0;
        for ((value, gradient), velocity) in values.iter_mut().zip(gradient).zip(velocity) {
            let gradient = scale * gradient + decay * *value;
            *velocity = momentum * *velocity + gradient;
            let step = if NESTEROV { gradient + momentum * *velocity } else { *velocity };
            *value -= rate * step;
            largest = largest.max(magnitude(*value));
        }
        f32::from_bits(largest)
    }
}
