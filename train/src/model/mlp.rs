//! A multilayer perceptron on images as rows of pixels, or on the rows of a table.

use candle_core::{Result, Tensor};

use super::{Model, Size};
use crate::candle::{Dropout, Linear, Parameters};

/// The default numbers of outputs of the hidden layers.
pub(super) const HIDDEN: [usize; 2] = [256, 128];

/// The size of the model.
pub(super) fn size(pixels: f64, hidden: &[usize], classes: usize) -> Size {
    let mut size = Size { inputs: pixels, with_backward: 3.0, ..Size::default() };
    let mut inputs = pixels;
    for outputs in hidden.iter().chain([&classes]).map(|&outputs| outputs as f64) {
        size.layer(1.0, inputs, outputs, true);
        inputs = outputs;
    }
    size
}

pub(super) struct Mlp {
    layers: Vec<Linear>,
    /// After each hidden layer.
    dropouts: Vec<Dropout>,
}

impl Mlp {
    pub(super) fn new(
        parameters: &Parameters,
        pixels: usize,
        hidden: &[usize],
        classes: usize,
        dropout: f64,
    ) -> Result<Self> {
        let (mut layers, mut dropouts) = (Vec::new(), Vec::new());
        let mut inputs = pixels;
        for (number, &outputs) in (1..).zip(hidden) {
            let layer = Linear::new(parameters, &format!("hidden{number}"), inputs, outputs, 2.0)?;
            layers.push(layer.with_relu());
            dropouts.push(Dropout::new(parameters, dropout)?);
            inputs = outputs;
        }
        layers.push(Linear::new(parameters, "output", inputs, classes, 0.1)?);
        Ok(Self { layers, dropouts })
    }
}

impl Model for Mlp {
    fn forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let (output, hidden) = self.layers.split_last().expect("there is an output");
        let mut hidden = hidden.iter().zip(&self.dropouts);
        let x =
            hidden.try_fold(inputs.clone(), |x, (layer, dropout)| dropout.forward(&layer.forward(&x)?))?;
        output.forward(&x)
    }
}
