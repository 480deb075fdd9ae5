//! A multilayer perceptron on images as rows of pixels, or on the rows of a table.

use candle_core::Tensor;

use super::layers::Layer;
use crate::network::{Dropout, Linear, chain};

/// The default numbers of outputs of the hidden layers.
pub(super) const HIDDEN: [usize; 2] = [256, 128];

pub(super) fn layers(pixels: usize, hidden: &[usize], classes: usize, dropout: f64) -> Vec<Layer> {
    let (mut layers, mut inputs) = (Vec::new(), pixels);
    for (number, &outputs) in (1..).zip(hidden) {
        let name = format!("hidden{number}");
        let size = [(inputs as f64 + 1.0) * outputs as f64, outputs as f64];
        layers.push(Layer::new(name.clone(), size, move |parameters| {
            let linear = Linear::new(parameters, &name, inputs, outputs, 2.0)?.with_relu();
            let dropout = Dropout::new(parameters, dropout)?;
            Ok(move |x: &Tensor, _| chain(&linear.parameters, &[&linear, &dropout], x))
        }));
        inputs = outputs;
    }
    let size = [(inputs as f64 + 1.0) * classes as f64, classes as f64];
    layers.push(Layer::new("output", size, move |parameters| {
        let linear = Linear::new(parameters, "output", inputs, classes, 0.1)?;
        Ok(move |x: &Tensor, _| linear.forward(x))
    }));
    layers
}
