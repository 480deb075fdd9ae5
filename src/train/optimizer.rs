//! Optimizers over flat memory: one pass over the parameters, their gradients and what is remembered of them.

use unisono_collectives::named;

use super::replica::Layout;

const MOMENTUM: f32 = 0.9;
/// How fast AdamW forgets gradients, and squares of gradients.
const BETAS: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// How parameters are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum 0.9; weight decay as a part of the gradient.
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2).
    AdamW,
}

impl OptimizerKind {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Sgd, Self::AdamW];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::AdamW => "adamw",
        }
    }
}

named!(OptimizerKind, "optimizer");

/// An optimizer and what it remembers.
#[derive(Debug)]
pub(super) struct Optimizer {
    weight_decay: f32,
    layout: Layout,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Sgd { velocity: Vec<f32> },
    AdamW { steps: i32, mean: Vec<f32>, square: Vec<f32> },
}

impl Optimizer {
    pub(super) fn new(kind: OptimizerKind, weight_decay: f64, layout: &Layout) -> Self {
        let zeros = || vec![0.0; layout.count()];
        let memory = match kind {
            OptimizerKind::Sgd => Memory::Sgd { velocity: zeros() },
            OptimizerKind::AdamW => Memory::AdamW { steps: 0, mean: zeros(), square: zeros() },
        };
        Self { weight_decay: weight_decay as f32, layout: layout.clone(), memory }
    }

    /// Updates all parameters by their gradients. Vectors (biases) do not decay: they are few, and do not
    /// overfit.
    pub(super) fn update(&mut self, values: &mut [f32], gradients: &[f32], rate: f64) {
        let rate = rate as f32;
        if let Memory::AdamW { steps, .. } = &mut self.memory {
            *steps += 1;
        }
        for parameter in self.layout.parameters() {
            let range = parameter.range.clone();
            let decay = if parameter.is_vector { 0.0 } else { self.weight_decay };
            let (values, gradients) = (&mut values[range.clone()], &gradients[range.clone()]);
            match &mut self.memory {
                Memory::Sgd { velocity } => sgd(values, gradients, &mut velocity[range], rate, decay),
                Memory::AdamW { steps, mean, square } => {
                    let memory = (&mut mean[range.clone()], &mut square[range]);
                    adamw(values, gradients, memory, *steps, rate, decay);
                }
            }
        }
    }
}

fn sgd(values: &mut [f32], gradients: &[f32], velocity: &mut [f32], rate: f32, decay: f32) {
    for ((value, gradient), velocity) in values.iter_mut().zip(gradients).zip(velocity) {
        *velocity = MOMENTUM * *velocity + gradient + decay * *value;
        *value -= rate * *velocity;
    }
}

fn adamw(
    values: &mut [f32],
    gradients: &[f32],
    (mean, square): (&mut [f32], &mut [f32]),
    steps: i32,
    rate: f32,
    decay: f32,
) {
    let (beta1, beta2) = BETAS;
    let unbiased_mean = 1.0 / (1.0 - beta1.powi(steps));
    let unbiased_square = 1.0 / (1.0 - beta2.powi(steps));
    for (((value, gradient), mean), square) in values.iter_mut().zip(gradients).zip(mean).zip(square) {
        *mean = beta1 * *mean + (1.0 - beta1) * gradient;
        *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
        let step = *mean * unbiased_mean / ((*square * unbiased_square).sqrt() + EPSILON);
        *value -= rate * (step + decay * *value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn optimizer(kind: OptimizerKind, weight_decay: f64) -> Optimizer {
        Optimizer::new(kind, weight_decay, &Layout::new([("bias", vec![1]), ("weight", vec![1, 1])]))
    }

    #[test]
    fn sgd_gathers_momentum_and_decays_weights_only() {
        let mut sgd = optimizer(OptimizerKind::Sgd, 0.5);
        let mut values = [1.0, 1.0];
        sgd.update(&mut values, &[1.0, 1.0], 0.1);
        assert_eq!(values, [0.9, 1.0 - 0.1 * 1.5]);
        sgd.update(&mut values, &[0.0, 0.0], 0.1);
        assert_eq!(values[0], 0.9 - 0.1 * 0.9);
    }

    #[test]
    fn the_first_step_of_adamw_is_the_rate_whatever_the_gradient() {
        let mut adamw = optimizer(OptimizerKind::AdamW, 0.1);
        let mut values = [1.0_f32, 1.0];
        adamw.update(&mut values, &[1e-3, -50.0], 0.01);
        assert!((values[0] - 0.99).abs() < 1e-5);
        assert!((values[1] - (1.0 + 0.01 - 0.001)).abs() < 1e-5);
    }
}
