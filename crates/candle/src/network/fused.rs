//! Operations of our own, each a single loop with a derivative.
//!
//! Candle's fused normalisation and softmax have no derivative, the derivative of its max-pooling is a quarter of the true
//! one, and compositions of its elementary operations cost a pass over memory and an allocation for each.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Storage, Tensor, bail};

/// A function of an `f32` tensor, written as loops over its values in row-major order.
pub trait Function: Send + Sync + 'static {
    /// The name in error messages.
    const NAME: &'static str;

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

impl<F: Function> CustomOp1 for Fused<F> {
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from(self.0.shape(layout.dims()));
        let mut y = vec![0.0; shape.elem_count()];
        self.0.forward(layout.dims(), values(storage, layout)?, &mut y);
        Ok((CpuStorage::F32(y), shape))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let dy = dy.contiguous()?;
        let lent = [x, y, &dy].map(Tensor::storage_and_layout);
        let [x_values, y_values, dy_values] = lent.each_ref().map(|(storage, layout)| match &**storage {
            Storage::Cpu(storage) => values(storage, layout),
            _ => bail!("{} works on the CPU only", F::NAME),
        });
        let mut dx = vec![0.0; x.elem_count()];
        self.0.backward(x.dims(), x_values?, y_values?, dy_values?, &mut dx);
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

/// Calls `see` with the values of a contiguous tensor, in row-major order.
pub(crate) fn with_values<T>(tensor: &Tensor, see: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("expected a tensor on the CPU") };
    Ok(see(values(storage, layout)?))
}
