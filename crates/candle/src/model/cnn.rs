//! A small convolutional network: two convolutions, each with pooling, and two linear layers.

use candle_core::{Result, Tensor};

use super::Size;
use super::layers::Layer;
use super::pool::MaxPool;
use crate::network::{Convolution, Linear, Parameters, Patches, chain};

/// The side of a convolution's kernel, in pixels.
const KERNEL: usize = 5;
/// The side of the squares that pooling reduces to a pixel.
const POOL: usize = 2;
/// The number of channels after each convolution.
const CHANNELS: [usize; 2] = [16, 32];
const HIDDEN: usize = 128;

/// Returns the size of the model; `None` for images that are too small.
pub(super) fn size([height, width, channels]: [usize; 3], classes: usize) -> Option<Size> {
    let mut channels = channels as f64;
    let inputs = height as f64 * width as f64 * channels;
    let mut size = Size { inputs, with_backward: 3.0, ..Size::default() };
    let mut sides = [height, width];
    for outputs in CHANNELS.map(|outputs| outputs as f64) {
        let area = |sides: [usize; 2]| sides[0] as f64 * sides[1] as f64;
        let inputs = (KERNEL * KERNEL) as f64 * channels;
        let places = area(sides.map(|side| (side + 1).saturating_sub(KERNEL)));
        sides = [convolved(sides[0])?, convolved(sides[1])?];
        // The patches, and the results of pooling, bias and ReLU; `layer` counts the convolution's result.
        size.activations += places * inputs + 3.0 * area(sides) * outputs;
        size.layer(places, inputs, outputs, true);
        channels = outputs;
    }
    let [rows, columns] = sides.map(|side| side as f64);
    size.layer(1.0, rows * columns * channels, HIDDEN as f64, true);
    size.layer(1.0, HIDDEN as f64, classes as f64, true);
    Some(size)
}

/// Returns the layers; `None` if the images, of this height, width and number of channels, are too small.
pub(super) fn layers(image: [usize; 3], classes: usize) -> Option<Vec<Layer>> {
    let [height, width, channels] = image;
    let left = |side| convolved(convolved(side)?).filter(|&side| side > 0);
    let (rows, columns) = (left(height)?, left(width)?);
    let [first, second] = CHANNELS;
    Some(vec![
        Layer::new("convolution1", move |parameters| {
            let convolution = pooled(parameters, "convolution1", [channels, first])?;
            Ok(move |x: &Tensor, _| convolution(&x.reshape(((), height, width, channels))?))
        }),
        Layer::new("convolution2", move |parameters| {
            let convolution = pooled(parameters, "convolution2", [first, second])?;
            Ok(move |x: &Tensor, _| convolution(x))
        }),
        Layer::new("hidden", move |parameters| {
            let linear = Linear::new(parameters, "hidden", rows * columns * second, HIDDEN, 2.0)?.with_relu();
            Ok(move |x: &Tensor, _| linear.forward(&x.flatten_from(1)?))
        }),
        Layer::new("output", move |parameters| {
            let linear = Linear::new(parameters, "output", HIDDEN, classes, 0.1)?;
            Ok(move |x: &Tensor, _| linear.forward(x))
        }),
    ])
}

/// Returns the side of an image after a convolution and its pooling.
fn convolved(side: usize) -> Option<usize> {
    Some((side + 1).checked_sub(KERNEL)? / POOL)
}

/// Returns a convolution with bias and ReLU, and pooling.
fn pooled(
    parameters: &Parameters,
    name: &str,
    [inputs, outputs]: [usize; 2],
) -> Result<impl Fn(&Tensor) -> Result<Tensor> + use<>> {
    let linear = Linear::new(parameters, name, KERNEL * KERNEL * inputs, outputs, 2.0)?.with_relu();
    let patches = Patches { side: KERNEL, stride: 1, padding: 0 };
    let convolution = Convolution { linear, patches };
    let parameters = parameters.clone();
    Ok(move |x: &Tensor| chain(&parameters, &[&convolution, &MaxPool { side: POOL }], x))
}
