//! A convolution as one operation: a linear layer on the patches of an image, block by block.
//!
//! The patches of a block stay in the cache and are not stored: the backward pass copies them again. For a kernel of 3 x 3, the patches of a whole
//! batch would be nine times as large as its images, and each pass would write and read them. (Chetlur et al., "cuDNN: efficient primitives for deep
//! learning", 2014, section 3.1, does the same on a GPU.)

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor, bail};

use super::blocks;
use super::buffer::Buffer;
use super::linear::{Linear, add_rows};
use super::operation::Operation;
use super::product::{Matrix, product};
use crate::values::Backward;
use unisono_train::Fill;

/// The number of values in the patches of a block, unless one image has more: 512 KiB, half of an L2 cache.
const BLOCK: usize = 1 << 17;

/// A [`Linear`] layer on the [`Patches`] of images of equal size. Input and result are `samples x height x width x channels`.
#[derive(Debug, Clone)]
pub(crate) struct Convolution {
    linear: Linear,
    patches: Patches,
    /// Set by the first forward pass.
    image: Arc<OnceLock<Image>>,
}

impl Convolution {
    pub(crate) fn new(linear: Linear, patches: Patches) -> Self {
        Self { linear, patches, image: Arc::default() }
    }

    fn image(&self, dims: &[usize]) -> Result<&Image> {
        let image = self.image.get_or_init(|| Image::new(self.patches, dims));
        if image.dims[1..] != dims[1..] {
            bail!("a convolution is given images of the shape {dims:?}, after some of {:?}", image.dims);
        }
        Ok(image)
    }

    /// Returns the numbers of values of `x` and of `y` in a block.
    fn block(&self, image: &Image) -> [usize; 2] {
        let &Image { values, patches, .. } = image;
        let images = (BLOCK / (patches * self.linear.inputs).max(1)).max(1);
        [images * values, images * patches * self.linear.outputs].map(|values| values.max(1))
    }

    /// Returns the number of patches of these images, and the values of the patches.
    fn patches_of(&self, image: &Image, images: &[f32]) -> (usize, Buffer) {
        let rows = images.len() / image.values * image.patches;
        let mut patches = Buffer::of(rows * self.linear.inputs);
        image.copy(images, &mut patches);
        (rows, patches)
    }

    /// Adds the derivative with respect to the images of a block to `dx`, and returns the derivatives with respect to bias and weight.
    fn derivatives(
        &self,
        image: &Image,
        [x, y, dy]: Backward<'_>,
        dx: Option<&mut [f32]>,
    ) -> Result<[Vec<f32>; 2]> {
        let Linear { inputs, outputs, .. } = self.linear;
        let dy = self.linear.before_relu(y, dy);
        let (mut of_bias, mut of_weight) = (Vec::new(), vec![0.0; inputs * outputs]);
        if self.linear.bias.is_some() {
            of_bias.resize(outputs, 0.0);
            add_rows(&mut of_bias, Fill::Set, &dy);
        }
        let (rows, mut patches) = self.patches_of(image, x);
        let (target, x) = ((&mut *of_weight, outputs), Matrix::new(&patches, rows, inputs));
        product(target, Fill::Set, x.transposed(), Matrix::new(&dy, rows, outputs));
        if let Some(dx) = dx {
            self.linear.before_product(rows, &dy, &mut patches)?;
            image.add(&patches, dx);
        }
        Ok([of_bias, of_weight])
    }
}

impl Operation for Convolution {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        let (Linear { inputs, outputs, .. }, channels) = (&self.linear, image_dims(dims)[3]);
        if *inputs != self.patches.side.pow(2) * channels {
            bail!("a convolution with {inputs} inputs is given images of {channels} channels");
        }
        Ok(self.patches.shape(dims, *outputs).to_vec())
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        self.linear.wait()?;
        let image = self.image(dims)?;
        let [of_x, of_y] = self.block(image);
        let done = blocks::map(x.chunks(of_x).zip(y.chunks_mut(of_y)), |(x, y)| {
            let (rows, patches) = self.patches_of(image, x);
            self.linear.of(Matrix::new(&patches, rows, self.linear.inputs), y)
        });
        done.into_iter().collect()
    }

    fn backward(&self, dims: &[usize], [x, y, dy]: Backward<'_>, mut dx: Option<&mut [f32]>) -> Result<()> {
        let image = self.image(dims)?;
        let [of_x, of_y] = self.block(image);
        if let Some(dx) = &mut dx {
            dx.fill(0.0);
        }
        let mut parts = dx.into_iter().flat_map(|dx| dx.chunks_mut(of_x));
        let blocks = x.chunks(of_x).zip(y.chunks(of_y).zip(dy.chunks(of_y)));
        let blocks = blocks.map(|(x, (y, dy))| ([x, y, dy], parts.next()));
        let gradients = blocks::map(blocks, |(block, dx)| self.derivatives(image, block, dx));
        let gradients = gradients.into_iter().collect::<Result<Vec<_>>>()?;
        // Summed in the order of the blocks, for any number of threads.
        let sum = |of: usize, target: &mut [f32], fill: Fill| {
            let fills = std::iter::once(fill).chain(std::iter::repeat(Fill::Add));
            fills.zip(&gradients).for_each(|(fill, gradients)| fill.write(target, &gradients[of]));
        };
        if let Some(bias) = &self.linear.bias {
            bias.report(&mut |target, fill| sum(0, target, fill));
        }
        for (weight, _) in &self.linear.weights {
            weight.report(&mut |target, fill| sum(1, target, fill));
        }
        Ok(())
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let shape = self.patches.shape(x.dims(), self.linear.outputs);
        self.linear.composed(&self.patches.composed(x)?)?.reshape(shape.to_vec())
    }
}

/// The positions of an image's patches.
#[derive(Debug)]
struct Image {
    /// The shape of the first input.
    dims: [usize; 4],
    values: usize,
    patches: usize,
    /// The number of values of a patch.
    length: usize,
    /// The rows of pixels of all patches, within the bounds of the image.
    rows: Vec<Row>,
    /// The rest of the patches, which is zero.
    padding: Vec<Range<usize>>,
}

/// Adjacent pixels.
#[derive(Debug)]
struct Row {
    /// The offset in the patches.
    patch: usize,
    /// The offset in the image.
    pixel: usize,
    values: usize,
}

impl Image {
    fn new(patches: Patches, dims: &[usize]) -> Self {
        let [_, height, width, channels] = image_dims(dims);
        let Patches { side, stride, padding } = patches;
        let (count, columns) = (patches.along(height) * patches.along(width), patches.along(width));
        let (mut rows, mut zeros, mut written) = (Vec::with_capacity(count * side), Vec::new(), 0);
        for place in 0..count {
            let (top, left) = (place / columns * stride, place % columns * stride);
            // Coordinates in the padded image.
            let (from, to) = (left.max(padding), (left + side).min(width + padding));
            for row in (0..side).filter(|row| (padding..height + padding).contains(&(top + row))) {
                let patch = ((place * side + row) * side + from - left) * channels;
                let pixel = ((top + row - padding) * width + from - padding) * channels;
                rows.push(Row { patch, pixel, values: (to - from) * channels });
                zeros.push(written..patch);
                written = patch + (to - from) * channels;
            }
        }
        let length = side * side * channels;
        zeros.push(written..count * length);
        zeros.retain(|zeros| !zeros.is_empty());
        let (dims, values) = (image_dims(dims), height * width * channels);
        Self { dims, values, patches: count, length, rows, padding: zeros }
    }

    fn copy(&self, images: &[f32], patches: &mut [f32]) {
        let of_image = patches.chunks_exact_mut(self.patches * self.length);
        for (image, patches) in images.chunks_exact(self.values).zip(of_image) {
            for &Row { patch, pixel, values } in &self.rows {
                patches[patch..][..values].copy_from_slice(&image[pixel..][..values]);
            }
            for zeros in &self.padding {
                patches[zeros.clone()].fill(0.0);
            }
        }
    }

    /// Adds each value of the patches to the pixel that it was copied from.
    fn add(&self, patches: &[f32], images: &mut [f32]) {
        let of_image = patches.chunks_exact(self.patches * self.length);
        for (image, patches) in images.chunks_exact_mut(self.values).zip(of_image) {
            for &Row { patch, pixel, values } in &self.rows {
                for (pixel, value) in image[pixel..][..values].iter_mut().zip(&patches[patch..][..values]) {
                    *pixel += value;
                }
            }
        }
    }
}

/// Every square of `side` pixels whose position is a multiple of `stride`, as a row of values: `samples*rows*columns x side*side*channels`. The image
/// has `padding` zeros around it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patches {
    pub(crate) side: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

impl Patches {
    fn shape(self, dims: &[usize], outputs: usize) -> [usize; 4] {
        let [samples, height, width, _] = image_dims(dims);
        [samples, self.along(height), self.along(width), outputs]
    }

    /// Returns the number of squares that fit along a side of the image.
    fn along(self, side: usize) -> usize {
        (side + 2 * self.padding - self.side) / self.stride + 1
    }

    fn composed(self, x: &Tensor) -> Result<Tensor> {
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
        // For each pixel position in a square, the values at this position in all squares.
        let pixels = (0..self.side * self.side)
            .map(|at| pixel(&pixel(&x, 1, at / self.side, rows)?, 2, at % self.side, columns))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&pixels, 3)?.reshape(((), self.side * self.side * channels))
    }
}

/// Samples, height, width and channels.
pub(crate) fn image_dims(dims: &[usize]) -> [usize; 4] {
    dims.try_into().expect("images have four dimensions")
}
