//! A small convolutional network: two convolutions, each with pooling, and two linear layers.

use candle_core::Tensor;

use super::layers::Layer;
use super::mlp;
use super::pool::MaxPool;
use crate::network::{Convolution, Linear, Patches, chain};

/// The side of a convolution's kernel, in pixels.
const KERNEL: usize = 5;
/// The side of the squares that pooling reduces to a pixel.
const POOL: usize = 2;
const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 128;

/// Returns the layers, or `None` if images of this height, width and number of channels are too small.
pub(super) fn layers([height, width, channels]: [usize; 3], classes: usize) -> Option<Vec<Layer>> {
    let (mut layers, mut sides, mut inputs) = (Vec::new(), [height, width], channels);
    for (number, outputs) in (1..).zip(CHANNELS) {
        let name = format!("convolution{number}");
        let area = |sides: [usize; 2]| sides[0] as f64 * sides[1] as f64;
        let convolved = [(sides[0] + 1).checked_sub(KERNEL)?, (sides[1] + 1).checked_sub(KERNEL)?];
        let pooled = convolved.map(|side| side / POOL);
        let (patch, channels) = ((KERNEL * KERNEL * inputs) as f64, outputs as f64);
        // The patches, their products, and the results of pooling, bias and ReLU.
        let activations = area(convolved) * (patch + channels) + 3.0 * area(pooled) * channels;
        layers.push(Layer::new(name.clone(), [(patch + 1.0) * channels, activations], move |parameters| {
            let linear = Linear::new(parameters, &name, KERNEL * KERNEL * inputs, outputs, 2.0)?.with_relu();
            let convolution = Convolution::new(linear, Patches { side: KERNEL, stride: 1, padding: 0 });
            let parameters = parameters.clone();
            Ok(move |x: &Tensor, _| {
                let image = |x: &Tensor| x.reshape(((), sides[0], sides[1], inputs));
                let x = if number == 1 { &image(x)? } else { x };
                chain(&parameters, &[&convolution, &MaxPool { side: POOL }], x)
            })
        }));
        (sides, inputs) = (pooled, outputs);
    }
    let inputs = sides[0] * sides[1] * inputs;
    let size = [(inputs as f64 + 1.0) * HIDDEN as f64, HIDDEN as f64];
    layers.push(Layer::new("hidden", size, move |parameters| {
        let linear = Linear::new(parameters, "hidden", inputs, HIDDEN, 2.0)?.with_relu();
        Ok(move |x: &Tensor, _| linear.forward(&x.flatten_from(1)?))
    }));
    layers.extend(mlp::layers(HIDDEN, &[], classes, 0.0));
    Some(layers).filter(|_| inputs > 0)
}
