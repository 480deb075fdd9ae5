//! A multilayer perceptron: an image as one row of pixels, through two hidden layers.

use candle_core::{Result, Tensor};

use super::Model;
use super::layers::{Linear, Parameters};

const HIDDEN: [usize; 2] = [256, 128];

pub(super) struct Mlp {
    hidden: [Linear; 2],
    output: Linear,
}

impl Mlp {
    pub(super) fn new(parameters: &mut Parameters, pixels: usize, classes: usize) -> Result<Self> {
        let [first, second] = HIDDEN;
        Ok(Self {
            hidden: [
                Linear::new(parameters, "hidden1", pixels, first, 2.0)?,
                Linear::new(parameters, "hidden2", first, second, 2.0)?,
            ],
            output: Linear::new(parameters, "output", second, classes, 0.1)?,
        })
    }
}

impl Model for Mlp {
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let mut x = inputs.clone();
        for layer in &self.hidden {
            x = layer.forward(&x)?.relu()?;
        }
        self.output.forward(&x)
    }
}
