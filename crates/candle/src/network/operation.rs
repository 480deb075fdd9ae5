//! Unisono's operations, each a loop with a derivative.
//!
//! Candle's fused normalisation and softmax have no derivative, and the derivative of its max-pooling is a quarter of the true one. Compositions of
//! its elementary operations cost a pass over memory and an allocation for each.

use candle_core::{Result, Tensor, bail};

use super::blocks::{self, BLOCK};
use crate::values::Backward;

/// A function of an `f32` tensor, written as loops over its values in row-major order.
pub trait Function: Send + Sync + 'static {
    /// The name in error messages.
    const NAME: &'static str;

    /// Whether each index of the first dimension is computed independently. The threads of the rank then divide the indices among them.
    const IS_SPLIT: bool = false;

    /// Returns the shape of the result for an input of shape `dims`.
    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        dims.to_vec()
    }

    /// Writes the function of `x`, of shape `dims`, to all of `y`. `y` initially holds values of an earlier operation.
    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]);

    /// Writes the derivative of the loss with respect to `x`, of shape `dims`, to all of `dx`, which initially holds values of an earlier operation.
    /// `dy` is the derivative with respect to `y`.
    fn backward(&self, dims: &[usize], x: &[f32], y: &[f32], dy: &[f32], dx: &mut [f32]);

    /// Computes the function by candle operations, which have derivatives. GPUs need this, since a loop cannot access their memory.
    ///
    /// # Errors
    /// Unless implemented: the function then supports only the CPU.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        bail!("{} works on the CPU only, and its input is on {:?}", Self::NAME, x.device().location())
    }
}

/// A layer or a function, as a part of a [`chain`](super::chain).
pub(crate) trait Part {
    /// Returns the part's operation for one pass, or `None` if it has no effect in this pass.
    fn operation(&self) -> Option<Box<dyn Operation>>;
}

impl<O: Operation + Clone + 'static> Part for O {
    fn operation(&self) -> Option<Box<dyn Operation>> {
        Some(Box::new(self.clone()))
    }
}

/// An operation of one pass on `f32` values in row-major order. It runs forward once, and then at most once backward, where it reports the gradients
/// of its parameters.
pub(crate) trait Operation: Send + Sync {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>>;

    /// Writes all of `y`.
    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()>;

    /// Writes the derivative with respect to `x` to all of `dx`, if an earlier operation needs it. `all` is `x`, `y`, and the derivative with respect
    /// to `y`.
    fn backward(&self, dims: &[usize], all: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()>;

    fn composed(&self, x: &Tensor) -> Result<Tensor>;
}

impl<F: Function> Operation for F {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        Ok(Function::shape(self, dims))
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        run::<F, _>(dims, [x], y, |dims, [x], y| Function::forward(self, dims, x, y));
        Ok(())
    }

    fn backward(&self, dims: &[usize], all: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        if let Some(dx) = dx {
            run::<F, _>(dims, all, dx, |dims, [x, y, dy], dx| {
                Function::backward(self, dims, x, y, dy, dx);
            });
        }
        Ok(())
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        Function::composed(self, x)
    }
}

/// Runs a function's `work` on an input of shape `dims`, on all threads of the rank if the input is long.
fn run<F: Function, const N: usize>(
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
