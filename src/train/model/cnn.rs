//! A small convolutional network: two convolutions, each with pooling, and two linear layers.

use candle_core::{Result, Tensor};

use super::Model;
use super::fused::apply;
use super::layers::{Linear, Parameters};
use super::patches::{MaxPool, Patches};

/// Side of a convolution's kernel, in pixels.
const KERNEL: usize = 5;
/// Side of the squares that pooling reduces to a pixel.
const POOL: usize = 2;
/// Channels after each convolution.
const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 128;

pub(super) struct Cnn {
    height: usize,
    width: usize,
    convolutions: [Linear; 2],
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    /// Adds the network's parameters; `None` if nothing is left of such small images.
    pub(super) fn new(
        parameters: &mut Parameters,
        height: usize,
        width: usize,
        classes: usize,
    ) -> Result<Option<Self>> {
        let left = |side| convolved(convolved(side)?).filter(|&side| side > 0);
        let (Some(rows), Some(columns)) = (left(height), left(width)) else {
            return Ok(None);
        };
        let [first, second] = CHANNELS;
        let square = KERNEL * KERNEL;
        Ok(Some(Self {
            height,
            width,
            convolutions: [
                Linear::new(parameters, "convolution1", square, first, 2.0)?,
                Linear::new(parameters, "convolution2", square * first, second, 2.0)?,
            ],
            hidden: Linear::new(parameters, "hidden", rows * columns * second, HIDDEN, 2.0)?,
            output: Linear::new(parameters, "output", HIDDEN, classes, 0.1)?,
        }))
    }
}

/// What a convolution and its pooling leave of a side.
fn convolved(side: usize) -> Option<usize> {
    Some((side + 1).checked_sub(KERNEL)? / POOL)
}

impl Model for Cnn {
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let mut x = inputs.reshape(((), self.height, self.width, 1))?;
        for layer in &self.convolutions {
            x = convolve(layer, &x)?;
        }
        let x = self.hidden.forward(&x.flatten_from(1)?)?.relu()?;
        self.output.forward(&x)
    }
}

/// Convolution, pooling and ReLU; `x` and the result are `samples x height x width x channels`.
fn convolve(layer: &Linear, x: &Tensor) -> Result<Tensor> {
    let (samples, height, width, _) = x.dims4()?;
    let y = layer.product(&apply(Patches { side: KERNEL }, x)?)?;
    let y = y.reshape((samples, height + 1 - KERNEL, width + 1 - KERNEL, ()))?;
    // The highest value stays the highest with a bias or a ReLU, and there are fewer of them.
    layer.shift(&apply(MaxPool { side: POOL }, &y)?)?.relu()
}
