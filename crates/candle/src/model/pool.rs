//! Max pooling over squares of an image.

use candle_core::{Result, Tensor};

use crate::network::{Function, image_dims};

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
