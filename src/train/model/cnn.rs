//! A small convolutional network: two convolutions, each with pooling, and two linear layers.

use candle_core::{Result, Tensor};

use super::Model;
use super::layers::{Linear, Parameters};

/// Side of a convolution's kernel, in pixels.
const KERNEL: usize = 5;
/// Side of the squares that pooling reduces to one pixel.
const POOL: usize = 2;
/// Channels after each convolution.
const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 128;

pub(super) struct Cnn {
    size: [usize; 2],
    convolutions: [Convolution; 2],
    hidden: Linear,
    output: Linear,
}

impl Cnn {
    /// `None` if the images are too small.
    pub(super) fn new(
        parameters: &mut Parameters,
        height: usize,
        width: usize,
        classes: usize,
    ) -> Result<Option<Self>> {
        let (Some(rows), Some(columns)) = (size_left(height), size_left(width)) else {
            return Ok(None);
        };
        let [first, second] = CHANNELS;
        Ok(Some(Self {
            size: [height, width],
            convolutions: [
                Convolution::new(parameters, "convolution1", 1, first)?,
                Convolution::new(parameters, "convolution2", first, second)?,
            ],
            hidden: Linear::new(parameters, "hidden", second * rows * columns, HIDDEN, 2.0)?,
            output: Linear::new(parameters, "output", HIDDEN, classes, 1.0)?,
        }))
    }
}

/// What both convolutions and poolings leave of a side, if anything.
fn size_left(side: usize) -> Option<usize> {
    let layer = |side: usize| Some((side + 1).checked_sub(KERNEL)? / POOL);
    layer(layer(side)?).filter(|&side| side > 0)
}

impl Model for Cnn {
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let [height, width] = self.size;
        let mut x = inputs.reshape(((), 1, height, width))?;
        for layer in &self.convolutions {
            x = layer.forward(&x)?.max_pool2d(POOL)?.relu()?;
        }
        self.output.forward(&self.hidden.forward(&x.flatten_from(1)?)?.relu()?)
    }
}

/// A convolution of `samples x channels x height x width`.
struct Convolution {
    kernel: Tensor,
    bias: Tensor,
}

impl Convolution {
    fn new(parameters: &mut Parameters, name: &str, inputs: usize, outputs: usize) -> Result<Self> {
        let deviation = (2.0 / (inputs * KERNEL * KERNEL) as f64).sqrt();
        let shape = (outputs, inputs, KERNEL, KERNEL);
        Ok(Self {
            kernel: parameters.add(format!("{name}.weight"), shape, deviation)?,
            bias: parameters.add(format!("{name}.bias"), (1, outputs, 1, 1), 0.0)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.conv2d(&self.kernel, 0, 1, 1, 1)?.broadcast_add(&self.bias)
    }
}
