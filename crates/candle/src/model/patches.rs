//! The operations of a convolutional network on the squares of an image.
//!
//! Images are `samples x height x width x channels`: neighbours in a row are neighbours in memory, and a convolution is a
//! linear layer on patches.

use candle_core::{Result, Tensor};

use crate::network::Function;

/// Every square of `side` pixels, or each at a multiple of `stride`, as a row of values: `samples*rows*columns x
/// side*side*channels`. The image has `padding` zeros around it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patches {
    pub(super) side: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
}

impl Patches {
    /// How many squares fit along a side of the image.
    fn along(&self, side: usize) -> usize {
        (side + 2 * self.padding - self.side) / self.stride + 1
    }

    /// Calls `visit` for each row of pixels of each square, as far as it is in the image, with its offset in the patches, its offset
    /// in the images, and its length.
    fn for_each_row(&self, dims: &[usize], mut visit: impl FnMut(usize, usize, usize)) {
        let [samples, height, width, channels] = image_dims(dims);
        let length = self.side * channels;
        let mut patch = 0;
        for sample in 0..samples {
            for top in (0..self.along(height)).map(|place| place * self.stride) {
                for left in (0..self.along(width)).map(|place| place * self.stride) {
                    // In the padded image.
                    let from = left.max(self.padding);
                    let to = (left + self.side).min(width + self.padding);
                    for row in top..top + self.side {
                        if (self.padding..height + self.padding).contains(&row) {
                            let image = (sample * height + row - self.padding) * width + from - self.padding;
                            let inside = (from - left) * channels;
                            visit(patch + inside, image * channels, (to - from) * channels);
                        }
                        patch += length;
                    }
                }
            }
        }
    }
}

impl Function for Patches {
    const NAME: &'static str = "patches";

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        let [samples, height, width, channels] = image_dims(dims);
        let positions = self.along(height) * self.along(width);
        vec![samples * positions, self.side * self.side * channels]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        self.for_each_row(dims, |patch, image, length| {
            y[patch..][..length].copy_from_slice(&x[image..][..length]);
        });
    }

    fn backward(&self, dims: &[usize], _: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.for_each_row(dims, |patch, image, length| {
            for (dx, dy) in dx[image..][..length].iter_mut().zip(&dy[patch..][..length]) {
                *dx += dy;
            }
        });
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let [_, height, width, channels] = image_dims(x.dims());
        let (rows, columns) = (self.along(height), self.along(width));
        let around = self.padding;
        let x = x.pad_with_zeros(1, around, around)?.pad_with_zeros(2, around, around)?;
        // Along a dimension, the pixel with this offset in all squares.
        let pixel = |x: &Tensor, dimension: usize, offset: usize, count: usize| match self.stride {
            1 => x.narrow(dimension, offset, count),
            stride => {
                let places = (0..count).map(|place| (offset + place * stride) as u32);
                x.index_select(&Tensor::from_iter(places, x.device())?, dimension)
            }
        };
        // For each pixel position in a square, the values of all squares there.
        let pixels = (0..self.side * self.side)
            .map(|at| pixel(&pixel(&x, 1, at / self.side, rows)?, 2, at % self.side, columns))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&pixels, 3)?.reshape(((), self.side * self.side * channels))
    }
}

/// The maximum of each channel in every square of `side` pixels, without overlap; what is left over at the right and the
/// bottom is dropped. The first maximum of a square, row by row, gets its gradient, as in PyTorch.
pub(super) struct MaxPool {
    pub(super) side: usize,
}

impl MaxPool {
    /// Calls `visit` for each pixel of each square with the offsets of its channels in the result and in the images.
    fn for_each_pixel(&self, dims: &[usize], mut visit: impl FnMut(usize, usize)) {
        let [samples, height, width, channels] = image_dims(dims);
        let mut pooled = 0;
        for sample in 0..samples {
            for top in (0..height + 1 - self.side).step_by(self.side) {
                for left in (0..width + 1 - self.side).step_by(self.side) {
                    for row in top..top + self.side {
                        for column in left..left + self.side {
                            visit(pooled, ((sample * height + row) * width + column) * channels);
                        }
                    }
                    pooled += channels;
                }
            }
        }
    }
}

impl Function for MaxPool {
    const NAME: &'static str = "max-pool";

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        let [samples, height, width, channels] = image_dims(dims);
        vec![samples, height / self.side, width / self.side, channels]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let [.., channels] = image_dims(dims);
        y.fill(f32::NEG_INFINITY);
        self.for_each_pixel(dims, |pooled, image| {
            for (y, x) in y[pooled..][..channels].iter_mut().zip(&x[image..][..channels]) {
                // A NaN stays one, so that the loss shows it.
                *y = if *x > *y || x.is_nan() { *x } else { *y };
            }
        });
    }

    fn backward(&self, dims: &[usize], x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        let [.., channels] = image_dims(dims);
        // The first maximum of a square takes the gradient and leaves zero to further ones.
        let mut left = dy.to_vec();
        self.for_each_pixel(dims, |pooled, image| {
            let (x, dx) = (&x[image..][..channels], &mut dx[image..][..channels]);
            let (y, left) = (&y[pooled..][..channels], &mut left[pooled..][..channels]);
            for (((dx, x), y), left) in dx.iter_mut().zip(x).zip(y).zip(left) {
                let is_maximum = x == y;
                *dx = if is_maximum { *left } else { 0.0 };
                *left = if is_maximum { 0.0 } else { *left };
            }
        });
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let [samples, height, width, channels] = image_dims(x.dims());
        let (side, rows, columns) = (self.side, height / self.side, width / self.side);
        let whole = x.narrow(1, 0, rows * side)?.narrow(2, 0, columns * side)?;
        let squares = whole.reshape(&[samples, rows, side, columns, side, channels])?;
        let pixel = |at: usize| squares.narrow(2, at / side, 1)?.narrow(4, at % side, 1)?.contiguous();
        // From the last pixel to the first, so that the first of several maxima is selected last, and has the gradient.
        let mut maximum = pixel(side * side - 1)?;
        for at in (0..side * side - 1).rev() {
            let pixel = pixel(at)?;
            maximum = pixel.ge(&maximum)?.where_cond(&pixel, &maximum)?;
        }
        maximum.reshape(&[samples, rows, columns, channels])
    }
}

/// Samples, height, width and channels.
fn image_dims(dims: &[usize]) -> [usize; 4] {
    dims.try_into().expect("images have four dimensions")
}
