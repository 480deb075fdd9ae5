//! A small residual network for images.
//!
//! **Source**: He et al., "Deep residual learning for image recognition" (2015), section 4.2: 3x3 convolutions, each with a batch norm, in blocks of
//! two with a shortcut without parameters (option A), then the mean over all pixels.

use candle_core::{Result, Tensor};

use super::layers::Layer;
use crate::network::{
    Convolution, Function, Linear, Parameters, Part, Patches, Relu, Residual, SyncBatchNorm, chain,
};

/// The default width of each block: three stages of one block.
pub(super) const HIDDEN: [usize; 3] = [16, 32, 64];
const KERNEL: usize = 3;

/// Returns the number of parameters of a convolution, and its number of activations per pixel of the result.
fn size(inputs: usize, outputs: usize) -> [f64; 2] {
    let (patch, outputs) = ((KERNEL * KERNEL) as f64 * inputs as f64, outputs as f64);
    // Parameters other than the product: weight, bias, running mean and variance. Activations: the patches, and the results of norm, sum and ReLU.
    [(patch + 4.0) * outputs, patch + 4.0 * outputs]
}

/// Returns the layers: a convolution, a block of each of these widths, and the output layer. A block whose width differs from the previous one halves
/// the sides of the image. Returns `None` without a width.
pub(super) fn layers(image: [usize; 3], widths: &[usize], classes: usize) -> Option<Vec<Layer>> {
    let (&first_width, &last_width) = (widths.first()?, widths.last()?);
    let [height, width, channels] = image;
    let mut sides = [height, width];
    let [parameters, of_pixel] = size(channels, first_width);
    let first = Layer::new("first", [parameters, of_pixel * (height * width) as f64], move |parameters| {
        let (convolution, norm) = normed(parameters, "first", [channels, first_width], 1)?;
        let (norm, parameters) = (norm.with_relu(), parameters.clone());
        Ok(move |x: &Tensor, _| {
            chain(&parameters, &[&convolution, &norm], &x.reshape(((), height, width, channels))?)
        })
    });
    let block = |(number, (&inputs, &outputs)): (usize, (&usize, &usize))| {
        let (name, stride) = (format!("block{number}"), if inputs == outputs { 1 } else { 2 });
        sides = sides.map(|side| side.div_ceil(stride));
        let [first, second] = [size(inputs, outputs), size(outputs, outputs)];
        let activations = (first[1] + second[1]) * (sides[0] * sides[1]) as f64;
        Layer::new(name.clone(), [first[0] + second[0], activations], move |parameters| {
            residual_block(parameters, &name, [inputs, outputs], stride)
        })
    };
    let of_output = [(last_width as f64 + 1.0) * classes as f64, classes as f64];
    let output = Layer::new("output", of_output, move |parameters| {
        let linear = Linear::new(parameters, "output", last_width, classes, 0.1)?;
        Ok(move |x: &Tensor, _| {
            let (samples, height, width, channels) = x.dims4()?;
            linear.forward(&x.reshape((samples, height * width, channels))?.mean(1)?)
        })
    });
    let blocks = (1..).zip(widths.first().into_iter().chain(widths).zip(widths)).map(block);
    Some([first].into_iter().chain(blocks).chain([output]).collect())
}

/// Builds a block: two convolutions, added to its input. The input and the result are `samples x height x width x channels`.
fn residual_block(
    parameters: &Parameters,
    name: &str,
    [inputs, outputs]: [usize; 2],
    stride: usize,
) -> Result<impl Fn(&Tensor, usize) -> Result<Tensor> + Send + 'static + use<>> {
    let layer = |number: usize, inputs, stride| {
        normed(parameters, &format!("{name}.convolution{number}"), [inputs, outputs], stride)
    };
    let ((first, first_norm), (second, second_norm)) = (layer(1, inputs, stride)?, layer(2, outputs, 1)?);
    let (first_norm, parameters) = (first_norm.with_relu(), parameters.clone());
    let shortcut = (inputs != outputs).then_some(Shortcut { stride, outputs });
    Ok(move |x: &Tensor, _: usize| {
        let parts: &[&dyn Part] = &[&first, &first_norm, &second, &second_norm];
        let shortcut = shortcut.as_ref().map(|shortcut| shortcut as &dyn Part);
        chain(&parameters, &[&Residual { parts, shortcut }, &Relu], x)
    })
}

/// Builds a convolution that keeps the sides of the image or divides them by its stride, and its batch norm.
fn normed(
    parameters: &Parameters,
    name: &str,
    [inputs, outputs]: [usize; 2],
    stride: usize,
) -> Result<(Convolution, SyncBatchNorm)> {
    let patches = Patches { side: KERNEL, stride, padding: KERNEL / 2 };
    let weight = format!("{name}.weight");
    let linear = Linear::without_bias(parameters, &weight, KERNEL * KERNEL * inputs, outputs, 2.0)?;
    let norm = SyncBatchNorm::new(parameters, &format!("{name}.norm"), outputs)?;
    Ok((Convolution::new(linear, patches), norm))
}

/// A shortcut: every pixel at a multiple of the stride, with zeros in the channels that the input lacks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortcut {
    pub(super) stride: usize,
    pub(super) outputs: usize,
}

impl Shortcut {
    /// Calls `visit` for each pixel of the result with its offset, the offset of its input, and the number of common channels.
    fn for_each_pixel(self, dims: &[usize], mut visit: impl FnMut(usize, usize, usize)) {
        let &[samples, height, width, channels] = dims else { unreachable!("images have four dimensions") };
        let mut result = 0;
        for sample in 0..samples {
            for row in (0..height).step_by(self.stride) {
                for column in (0..width).step_by(self.stride) {
                    let image = ((sample * height + row) * width + column) * channels;
                    visit(result, image, channels.min(self.outputs));
                    result += self.outputs;
                }
            }
        }
    }
}

impl Function for Shortcut {
    const NAME: &'static str = "shortcut";
    const IS_SPLIT: bool = true;

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        vec![dims[0], dims[1].div_ceil(self.stride), dims[2].div_ceil(self.stride), self.outputs]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        y.fill(0.0);
        self.for_each_pixel(dims, |result, image, common| {
            y[result..][..common].copy_from_slice(&x[image..][..common]);
        });
    }

    fn backward(&self, dims: &[usize], _: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        dx.fill(0.0);
        self.for_each_pixel(dims, |result, image, common| {
            dx[image..][..common].copy_from_slice(&dy[result..][..common]);
        });
    }
}
