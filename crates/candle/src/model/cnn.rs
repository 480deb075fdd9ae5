//! A small convolutional network: two convolutions, each with pooling, and two linear layers.

use candle_core::{Result, Tensor};

use super::layers::Layer;
use super::mlp;
use crate::network::{Convolution, Function, Linear, Patches, chain, image_dims};

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

/// The maximum of each channel in every square of `side` pixels, without overlap. Remaining pixels at the right and the bottom are dropped. The first
/// maximum of a square, row by row, receives its gradient, as in PyTorch.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxPool {
    pub(super) side: usize,
}

impl MaxPool {
    /// Returns the offset of the first pixel of each square of an image, and the offsets of a square's pixels from there.
    fn pixels(&self, dims: &[usize]) -> [Vec<usize>; 2] {
        let [_, height, width, channels] = image_dims(dims);
        let (rows, columns, side) = (height / self.side, width / self.side, self.side);
        let square = |at: usize| (at / columns * width + at % columns) * side * channels;
        let pixel = |at: usize| (at / side * width + at % side) * channels;
        [(0..rows * columns).map(square).collect(), (0..side * side).map(pixel).collect()]
    }
}

impl Function for MaxPool {
    const NAME: &'static str = "max-pool";
    const IS_SPLIT: bool = true;

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        let [samples, height, width, channels] = image_dims(dims);
        vec![samples, height / self.side, width / self.side, channels]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let ([squares, pixels], channels) = (self.pixels(dims), dims[3]);
        let images = x.chunks_exact(dims[1] * dims[2] * channels);
        let of_images = y.chunks_exact_mut(squares.len() * channels);
        for (x, y) in images.zip(of_images) {
            for (square, y) in squares.iter().zip(y.chunks_exact_mut(channels)) {
                y.fill(f32::NEG_INFINITY);
                for pixel in &pixels {
                    for (y, x) in y.iter_mut().zip(&x[square + pixel..][..channels]) {
                        // A NaN is preserved, so that it appears in the loss.
                        *y = if *x > *y || x.is_nan() { *x } else { *y };
                    }
                }
            }
        }
    }

    fn backward(&self, dims: &[usize], x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        dx.fill(0.0);
        let ([squares, pixels], channels) = (self.pixels(dims), dims[3]);
        let (image, pooled) = (dims[1] * dims[2] * channels, squares.len() * channels);
        // The first maximum of a square takes the gradient, and leaves zero to later ones.
        let mut left = vec![0.0; channels];
        let of_images = y.chunks_exact(pooled).zip(dy.chunks_exact(pooled));
        for ((x, dx), (y, dy)) in x.chunks_exact(image).zip(dx.chunks_exact_mut(image)).zip(of_images) {
            let of_squares = y.chunks_exact(channels).zip(dy.chunks_exact(channels));
            for (square, (y, dy)) in squares.iter().zip(of_squares) {
                left.copy_from_slice(dy);
                for pixel in &pixels {
                    let at = square + pixel..square + pixel + channels;
                    let of_pixel = dx[at.clone()].iter_mut().zip(&x[at]);
                    for (((dx, x), y), left) in of_pixel.zip(y).zip(&mut left) {
                        let is_maximum = x == y;
                        *dx = if is_maximum { *left } else { 0.0 };
                        *left = if is_maximum { 0.0 } else { *left };
                    }
                }
            }
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let [samples, height, width, channels] = image_dims(x.dims());
        let (side, rows, columns) = (self.side, height / self.side, width / self.side);
        let whole = x.narrow(1, 0, rows * side)?.narrow(2, 0, columns * side)?;
        let squares = whole.reshape(&[samples, rows, side, columns, side, channels])?;
        let pixel = |at: usize| squares.narrow(2, at / side, 1)?.narrow(4, at % side, 1)?.contiguous();
        // Iterates from the last pixel to the first. The first of several maxima is then selected last, and receives the gradient.
        let mut maximum = pixel(side * side - 1)?;
        for at in (0..side * side - 1).rev() {
            let pixel = pixel(at)?;
            maximum = pixel.ge(&maximum)?.where_cond(&pixel, &maximum)?;
        }
        maximum.reshape(&[samples, rows, columns, channels])
    }
}
