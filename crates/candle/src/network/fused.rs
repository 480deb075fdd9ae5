//! Operations of our own, each a single loop with a derivative.
//!
//! Candle's fused normalisation and softmax have no derivative, the derivative of its max-pooling is a quarter of the true
//! one, and compositions of its elementary operations cost a pass over memory and an allocation for each.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, bail};

use super::blocks::{self, BLOCK};

/// A function of an `f32` tensor, written as loops over its values in row-major order.
pub trait Function: Send + Sync + 'static {
    /// The name in error messages.
    const NAME: &'static str;

    /// Whether each index of the first dimension is computed by itself: the threads of the rank then share them.
    const IS_SPLIT: bool = false;

    /// The shape of the result for an input of shape `dims`.
    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        dims.to_vec()
    }

    /// Writes the function of `x`, of shape `dims`, to `y`, which is zeroed before.
    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]);

    /// Writes the derivative of the loss with respect to `x`, of shape `dims`, to `dx`, which is zeroed before; `dy` is the
    /// derivative with respect to `y`.
    fn backward(&self, dims: &[usize], x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]);

    /// The same function composed of candle operations, which have derivatives: for a GPU, whose memory a loop cannot
    /// access.
    ///
    /// # Errors
    /// Unless implemented: the function is then for the CPU only.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        bail!("{} works on the CPU only, and its input is on {:?}", Self::NAME, x.device().location())
    }
}

/// Applies `function` to `x`: by its loops on the CPU, and by its composition elsewhere.
///
/// # Errors
/// If `x` is not an `f32` tensor, or on a device that the function does not support.
pub fn apply(function: impl Function, x: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return function.composed(x);
    }
    x.contiguous()?.apply_op1(Fused(function))
}

struct Fused<F>(F);

impl<F: Function> Fused<F> {
    /// Runs `work` with an input of shape `dims`, on all threads of the rank if it is long.
    fn run<const N: usize>(
        dims: &[usize],
        inputs: [&[f32]; N],
        target: &mut [f32],
        work: impl Fn(&[usize], [&[f32]; N], &mut [f32]) + Send + Sync,
    ) {
        let most = inputs.iter().map(|input| input.len()).max().unwrap_or(0).max(target.len());
        let count = dims.first().copied().unwrap_or(1);
        if !F::IS_SPLIT || most <= BLOCK || count < 2 {
            return work(dims, inputs, target);
        }
        let indices = (BLOCK * count / most).max(1);
        let of_block = (target.len() / count * indices).max(1);
        blocks::map(target.chunks_mut(of_block).enumerate(), |(block, target)| {
            let (first, end) = (block * indices, count.min((block + 1) * indices));
            let dims = [&[end - first], &dims[1..]].concat();
            let part = |values: &[f32]| first * (values.len() / count)..end * (values.len() / count);
            work(&dims, inputs.map(|input| &input[part(input)]), target);
        });
    }
}

impl<F: Function> CustomOp1 for Fused<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from(self.0.shape(layout.dims()));
        let mut y = vec![0.0; shape.elem_count()];
        let work = |dims: &[usize], [x]: [&[f32]; 1], y: &mut [f32]| self.0.forward(dims, x, y);
        Self::run(layout.dims(), [values(storage, layout)?], &mut y, work);
        Ok((CpuStorage::F32(y), shape))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let mut dx = vec![0.0; x.elem_count()];
        let work =
            |dims: &[usize], [x, y, dy]: [&[f32]; 3], dx: &mut [f32]| self.0.backward(dims, x, y, dy, dx);
        with_all([x, y, &dy.contiguous()?], |all| Self::run(x.dims(), all, &mut dx, work))?;
        Tensor::from_vec(dx, x.shape(), x.device()).map(Some)
    }
}

/// The values of a contiguous tensor.
pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice()?[start..end]),
        None => bail!("expected a contiguous tensor, not {layout:?}"),
    }
}

/// Calls `see` with the values of contiguous tensors, in row-major order.
pub(super) fn with_all<const N: usize, T>(
    tensors: [&Tensor; N],
    see: impl FnOnce([&[f32]; N]) -> T,
) -> Result<T> {
    let lent = tensors.map(Tensor::storage_and_layout);
    let mut all = [&[] as &[f32]; N];
    for (part, (storage, layout)) in all.iter_mut().zip(&lent) {
        let Storage::Cpu(storage) = &**storage else { bail!("expected a tensor on the CPU") };
        *part = values(storage, layout)?;
    }
    Ok(see(all))
}

/// Calls `see` with the values of a contiguous tensor, in row-major order.
pub(crate) fn with_values<T>(tensor: &Tensor, see: impl FnOnce(&[f32]) -> T) -> Result<T> {
    with_all([tensor], |[values]| see(values))
}
