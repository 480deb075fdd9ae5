//! The loops over elements, compiled for every level of instructions. All levels give the same bits.

use super::OptimizerSettings;
use unisono::internals::{Lanes, Pass};

/// The magnitude of a number, as bits that are ordered like magnitudes: an infinity exceeds all finite ones, and a NaN exceeds it.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

/// Finds the largest [magnitude] of some values. The array of the pass is that one number.
#[derive(Debug)]
pub(super) struct Largest;

impl Pass for Largest {
    type Beside<'a> = &'a [f32];

    #[inline(always)]
    fn run<L: Lanes>(_: L, largest: &mut [u8], values: &[f32]) {
        let [largest] = bytemuck::cast_slice_mut(largest) else { unreachable!("it is one number") };
        let mut most: u32 = *largest;
        for value in values {
            most = most.max(magnitude(*value));
        }
        *largest = most;
    }
}

/// A step of SGD on the values, which are the array of the pass.
///
/// v = momentum v + (scale g + decay w), then w −= rate v, or with Nesterov w −= rate (scale g + decay w + momentum v). As
/// in PyTorch, the learning rate is not part of the velocity.
#[derive(Debug)]
pub(super) struct Sgd<const NESTEROV: bool>;

/// The inputs of [`Sgd`] besides the values.
#[derive(Debug)]
pub(super) struct SgdStep<'a> {
    pub(super) gradient: &'a [f32],
    pub(super) velocity: &'a mut [f32],
    pub(super) scale: f32,
    pub(super) momentum: f32,
    pub(super) decay: f32,
    pub(super) rate: f32,
    /// The largest [magnitude] of the new values. A velocity that is not finite makes its value so.
    pub(super) largest: &'a mut u32,
}

impl<const NESTEROV: bool> Pass for Sgd<NESTEROV> {
    type Beside<'a> = SgdStep<'a>;

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], step: SgdStep<'_>) {
        let SgdStep { gradient, velocity, scale, momentum, decay, rate, largest } = step;
        let mut most = *largest;
        let values: &mut [f32] = bytemuck::cast_slice_mut(values);
        for ((value, gradient), velocity) in values.iter_mut().zip(gradient).zip(velocity) {
            let gradient = scale * gradient + decay * *value;
            *velocity = momentum * *velocity + gradient;
            let step = if NESTEROV { gradient + momentum * *velocity } else { *velocity };
            *value -= rate * step;
            most = most.max(magnitude(*value));
        }
        *largest = most;
    }
}

/// A step of AdamW on the values, which are the array of the pass.
#[derive(Debug)]
pub(super) struct AdamW;

/// The inputs of [`AdamW`] besides the values.
#[derive(Debug)]
pub(super) struct AdamStep<'a> {
    pub(super) gradient: &'a [f32],
    pub(super) mean: &'a mut [f32],
    pub(super) square: &'a mut [f32],
    pub(super) adam: Adam,
    pub(super) scale: f32,
    pub(super) decay: f32,
    pub(super) rate: f32,
    /// The largest [magnitude] of the new values; a NaN if a mean of squares is not finite, which would hide from its value.
    pub(super) largest: &'a mut u32,
}

/// The constants of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Adam {
    pub(super) betas: (f32, f32),
    pub(super) epsilon: f32,
    /// Corrects the bias of the two means, which started at zero.
    pub(super) unbiased: (f32, f32),
}

impl Adam {
    /// The constants of this step, counted from 1.
    pub(super) fn new(settings: &OptimizerSettings, step: u64) -> Self {
        // In `f64`: for a beta near 1, too few digits of an `f32` differ from 1.
        let step = i32::try_from(step).unwrap_or(i32::MAX);
        let unbiased = |beta: f32| (1.0 / (1.0 - f64::from(beta).powi(step))) as f32;
        let (betas, epsilon) = (settings.betas, settings.epsilon);
        Self { betas, epsilon, unbiased: (unbiased(betas.0), unbiased(betas.1)) }
    }
}

impl Pass for AdamW {
    type Beside<'a> = AdamStep<'a>;

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], step: AdamStep<'_>) {
        let AdamStep { gradient, mean, square, adam, scale, decay, rate, largest } = step;
        let mut most = *largest;
        let Adam { betas: (beta1, beta2), epsilon, unbiased: (unbiased1, unbiased2) } = adam;
        let values: &mut [f32] = bytemuck::cast_slice_mut(values);
        for (((value, gradient), mean), square) in values.iter_mut().zip(gradient).zip(mean).zip(square) {
            let gradient = scale * gradient;
            *mean = beta1 * *mean + (1.0 - beta1) * gradient;
            *square = beta2 * *square + (1.0 - beta2) * gradient * gradient;
            let step = *mean * unbiased1 / ((*square * unbiased2).sqrt() + epsilon);
            *value -= rate * (step + decay * *value);
            // Zero times an infinity is NaN.
            most = most.max(magnitude(*value)).max(magnitude(0.0 * *square));
        }
        *largest = most;
    }
}

/// Sums squares. The array of the pass is one `f64` sum per lane: element `i` is added to lane `i` modulo [`LANES`],
/// whatever the vector width, so that all processors add in the same order.
#[derive(Debug)]
pub(super) struct SquareSum;

/// The number of sums: enough that no addition waits for the previous one.
pub(super) const LANES: usize = 32;

impl Pass for SquareSum {
    type Beside<'a> = &'a [f32];

    #[inline(always)]
    fn run<L: Lanes>(_: L, sums: &mut [u8], gradient: &[f32]) {
        let sums: &mut [f64] = bytemuck::cast_slice_mut(sums);
        let mut lanes: [f64; LANES] = std::array::from_fn(|lane| sums[lane]);
        let (blocks, rest) = gradient.as_chunks::<LANES>();
        for block in blocks {
            for (sum, &element) in lanes.iter_mut().zip(block) {
                *sum += f64::from(element) * f64::from(element);
            }
        }
        for (sum, &element) in lanes.iter_mut().zip(rest) {
            *sum += f64::from(element) * f64::from(element);
        }
        sums.copy_from_slice(&lanes);
    }
}
