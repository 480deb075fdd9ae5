//! Functions of single values, and of rows, which are the values along a tensor's last dimension.

use candle_core::{D, Result, Tensor};

use super::operation::Function;

/// The number of parallel partial sums: a single sum would prevent vectorisation.
pub(super) const LANES: usize = 16;

/// `max(x, 0)`, whose derivative at 0 is 0. Candle's derivative is 1 there, where all values of a black image lie before its bias is trained.
///
/// A NaN is preserved, so that it appears in the loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Relu;

impl Relu {
    #[inline(always)]
    pub(crate) fn of(x: f32) -> f32 {
        if x <= 0.0 { 0.0 } else { x }
    }

    /// Returns the derivative with respect to `x`, given the result and the derivative with respect to it.
    #[inline(always)]
    pub(super) fn derivative(y: f32, dy: f32) -> f32 {
        if y == 0.0 { 0.0 } else { dy }
    }
}

impl Function for Relu {
    const NAME: &'static str = "relu";
    const IS_SPLIT: bool = true;

    fn forward(&self, _: &[usize], x: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = Self::of(x));
    }

    fn backward(&self, _: &[usize], _: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
            *dx = Self::derivative(*y, *dy);
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let zeros = x.zeros_like()?;
        x.le(&zeros)?.where_cond(&zeros, x)
    }
}

/// Scales each row to a mean square of 1.
///
/// It has no gain, because the following linear layer can represent it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RmsNorm;

impl RmsNorm {
    fn scale(x: &[f32]) -> f32 {
        let mean_square = dot(x, x) / x.len() as f32;
        (mean_square + 1e-6).sqrt().recip()
    }
}

impl Function for RmsNorm {
    const NAME: &'static str = "rms-norm";
    const IS_SPLIT: bool = true;

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let width = width(dims);
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let scale = Self::scale(x);
            for (y, x) in y.iter_mut().zip(x) {
                *y = x * scale;
            }
        }
    }

    fn backward(&self, dims: &[usize], x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]) {
        let width = width(dims);
        let inputs = x.chunks_exact(width).zip(y.chunks_exact(width)).zip(dy.chunks_exact(width));
        for (((x, y), dy), dx) in inputs.zip(dx.chunks_exact_mut(width)) {
            let scale = Self::scale(x);
            let along = dot(y, dy) / width as f32;
            for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
                *dx = scale * (dy - along * y);
            }
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?)
    }
}

/// `max(x, 0)^2`, which learns at least as well as GELU (So et al. 2021, "Primer"), without exponentials.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SquaredRelu;

impl Function for SquaredRelu {
    const NAME: &'static str = "squared-relu";
    const IS_SPLIT: bool = true;

    fn forward(&self, _: &[usize], x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = Relu::of(*x).powi(2);
        }
    }

    fn backward(&self, _: &[usize], x: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
            *dx = 2.0 * Relu::of(*x) * dy;
        }
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        Relu.composed(x)?.sqr()
    }
}

fn width(dims: &[usize]) -> usize {
    dims.last().copied().unwrap_or(1).max(1)
}

/// Returns the inner product, summed in `LANES` partial sums.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
