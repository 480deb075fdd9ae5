//! Dropout with a reproducible mask.
//!
//! **Source**: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014, but values are scaled in training
//! rather than in evaluation.

use candle_core::{Result, Tensor, bail};

use super::chain::apply;
use super::operation::{Function, Operation, Part};
use super::parameters::{Parameters, is_training};

pub(crate) const STEPS: &str = "dropout.steps";

/// A layer that sets values to zero at random in a training pass, and scales the others up to preserve the mean. Does nothing outside training.
///
/// A hash of the seed, the layer, the step, the rank with its pass, and the position in the tensor selects the dropped values. The steps are counted
/// in a buffer of the model, `dropout.steps`, so a resumed run drops the same values as an uninterrupted one.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use unisono_candle::{Dropout, Parameters};
///
/// let dropout = Dropout::new(&Parameters::new(7), 0.5)?;
/// let x = Tensor::new(&[1.0_f32, 2.0], &Device::Cpu)?;
/// // This is not a training pass.
/// assert_eq!(dropout.forward(&x)?.to_vec1::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Dropout {
    parameters: Parameters,
    layer: u64,
    probability: f64,
}

impl Dropout {
    /// Returns a layer that drops each value with this probability. Called by all ranks in the same order.
    ///
    /// # Errors
    /// If the probability is not from 0 to below 1.
    pub fn new(parameters: &Parameters, probability: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&probability) {
            bail!("the probability of dropout is {probability}: it must be from 0 to below 1");
        }
        let mut passes = parameters.passes();
        if probability > 0.0 && passes.steps.is_none() {
            // The second number counts multiples that the first cannot hold exactly.
            passes.steps = Some(parameters.add_buffer(STEPS, 2, vec![0.0; 2])?);
        }
        let layer = passes.dropouts;
        passes.dropouts += 1;
        Ok(Self { parameters: parameters.clone(), layer, probability })
    }

    /// Drops values of `x`, of any shape. Two calls in a pass drop the same positions, so create a layer for each use.
    ///
    /// # Errors
    /// An error of candle.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.mask().map_or(Ok(x.clone()), |mask| apply(mask, x))
    }

    /// Returns the mask of this pass, if it drops any values.
    fn mask(&self) -> Option<Mask> {
        if self.probability == 0.0 || !is_training() {
            return None;
        }
        let passes = self.parameters.passes();
        let key = [self.parameters.seed, self.layer, passes.step, passes.pass];
        let key = key.into_iter().fold(0, |key, number| mixed(mixed(key) ^ number));
        // The product is in range because the probability is below 1.
        let threshold = (self.probability * 2_f64.powi(64)) as u64;
        Some(Mask { key, threshold, scale: (1.0 - self.probability).recip() as f32 })
    }
}

impl Part for Dropout {
    fn operation(&self) -> Option<Box<dyn Operation>> {
        self.mask()?.operation()
    }
}

#[derive(Debug, Clone, Copy)]
struct Mask {
    key: u64,
    /// A hash below this drops its value.
    threshold: u64,
    scale: f32,
}

impl Mask {
    fn factor(self, place: usize) -> f32 {
        let hash = mixed(self.key.wrapping_add((place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        if hash < self.threshold { 0.0 } else { self.scale }
    }

    fn multiply(self, x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).enumerate().for_each(|(place, (y, x))| *y = x * self.factor(place));
    }
}

impl Function for Mask {
    const NAME: &'static str = "dropout";

    fn forward(&self, _: &[usize], x: &[f32], y: &mut [f32]) {
        self.multiply(x, y);
    }

    fn backward(&self, _: &[usize], _: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.multiply(dy, dx);
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let factors: Vec<_> = (0..x.elem_count()).map(|place| self.factor(place)).collect();
        x * Tensor::from_vec(factors, x.shape(), x.device())?
    }
}

/// Returns the finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
