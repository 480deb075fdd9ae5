//! Operations on each row of a tensor by itself, with their derivatives.
//!
//! Candle's fused normalisation and softmax have no derivative, and composing them of its
//! elementary operations costs a pass over memory and an allocation for each. Here one loop
//! does the whole row.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, bail};

/// A function of a row: the values along a tensor's last dimension.
pub(super) trait RowFunction: Send + Sync + 'static {
    const NAME: &'static str;

    /// Writes the function of `x` to `y`; `row` counts the tensor's rows.
    fn forward(&self, row: usize, x: &[f32], y: &mut [f32]);

    /// Turns the derivative by `y` into the derivative by `x`, in place.
    fn backward(&self, row: usize, x: &[f32], y: &[f32], derivative: &mut [f32]);
}

/// Applies `function` to every row of `x`.
pub(super) fn rowwise(x: &Tensor, function: impl RowFunction) -> Result<Tensor> {
    x.contiguous()?.apply_op1(Rowwise(function))
}

struct Rowwise<F>(F);

impl<F: RowFunction> CustomOp1 for Rowwise<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("{} of rows with gaps", F::NAME) };
        let x = &storage.as_slice::<f32>()?[start..end];
        let width = row_width(layout.shape())?;
        let mut y = vec![0.0; x.len()];
        for (row, (x, y)) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).enumerate() {
            self.0.forward(row, x, y);
        }
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, derivative: &Tensor) -> Result<Option<Tensor>> {
        let width = row_width(x.shape())?;
        let mut derivative = derivative.flatten_all()?.to_vec1::<f32>()?;
        with_slice(x, |x| {
            with_slice(y, |y| {
                let rows = x.chunks_exact(width).zip(y.chunks_exact(width));
                for (row, ((x, y), d)) in rows.zip(derivative.chunks_exact_mut(width)).enumerate() {
                    self.0.backward(row, x, y, d);
                }
            })
        })??;
        Tensor::from_vec(derivative, x.shape(), x.device()).map(Some)
    }
}

fn row_width(shape: &Shape) -> Result<usize> {
    match shape.dims() {
        [.., width] if *width > 0 => Ok(*width),
        dims => bail!("no rows in a tensor of shape {dims:?}"),
    }
}

/// Lends the values of a contiguous tensor.
fn with_slice<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(read(&storage.as_slice::<f32>()?[start..end])),
        _ => bail!("expected a contiguous tensor on the CPU"),
    }
}

/// Scales a row to a mean square of 1.
///
/// It has no gain of its own: the linear layer that follows has.
pub(super) struct RmsNorm;

impl RmsNorm {
    /// What to multiply `x` with.
    fn scale(x: &[f32]) -> f32 {
        let square: f32 = dot(x, x) / x.len() as f32;
        1.0 / (square + 1e-6).sqrt()
    }
}

impl RowFunction for RmsNorm {
    const NAME: &'static str = "rms-norm";

    fn forward(&self, _: usize, x: &[f32], y: &mut [f32]) {
        let scale = Self::scale(x);
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * scale;
        }
    }

    fn backward(&self, _: usize, x: &[f32], y: &[f32], derivative: &mut [f32]) {
        let scale = Self::scale(x);
        let along = dot(y, derivative) / y.len() as f32;
        for (d, y) in derivative.iter_mut().zip(y) {
            *d = scale * (*d - along * y);
        }
    }
}

/// The softmax of `scale x`, in row `i` of each `context x context` block only over the first
/// `i + 1` values: no token attends to those after it.
pub(super) struct CausalSoftmax {
    pub(super) scale: f32,
}

impl RowFunction for CausalSoftmax {
    const NAME: &'static str = "causal-softmax";

    fn forward(&self, row: usize, x: &[f32], y: &mut [f32]) {
        let seen = row % x.len() + 1;
        let (x, y) = (&x[..seen], &mut y[..seen]);
        let highest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for (y, x) in y.iter_mut().zip(x) {
            *y = (self.scale * (x - highest)).exp();
            sum += *y;
        }
        for y in y {
            *y /= sum;
        }
    }

    fn backward(&self, row: usize, _: &[f32], y: &[f32], derivative: &mut [f32]) {
        let (seen, hidden) = derivative.split_at_mut(row % y.len() + 1);
        let y = &y[..seen.len()];
        let mean = dot(y, seen);
        for (d, y) in seen.iter_mut().zip(y) {
            *d = self.scale * y * (*d - mean);
        }
        hidden.fill(0.0);
    }
}

/// `max(x, 0)^2`: learns at least as well as GELU (So et al. 2021, "Primer") without its
/// exponentials.
pub(super) struct SquaredRelu;

impl RowFunction for SquaredRelu {
    const NAME: &'static str = "squared-relu";

    fn forward(&self, _: usize, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = x.max(0.0) * x;
        }
    }

    fn backward(&self, _: usize, x: &[f32], _: &[f32], derivative: &mut [f32]) {
        for (d, x) in derivative.iter_mut().zip(x) {
            *d *= 2.0 * x.max(0.0);
        }
    }
}

/// The inner product, in lanes: summed one after the other, floats would not vectorise.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
