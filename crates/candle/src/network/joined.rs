//! Linear layers of one input, whose results stand side by side.

use candle_core::{Result, Tensor};

use super::linear::{Kernel, Linear};
use super::operation::{Operation, Part};
use super::product::{Matrix, product, product_transposed, transposed_product};
use super::values::Backward;
use unisono_train::Fill;

/// Layers without bias and ReLU, and with equal numbers of inputs: `rows x inputs` to `rows x` the sum of their outputs.
pub(crate) struct Joined<'a, const N: usize>(pub(crate) [&'a Linear; N]);

impl<const N: usize> Part for Joined<'_, N> {
    fn operation(&self) -> Result<Option<Box<dyn Operation>>> {
        let kernels = self.0.map(Linear::kernel);
        assert!(kernels.iter().all(|kernel| kernel.is_product()), "joined layers have no bias and no ReLU");
        Ok(Some(Box::new(Kernels(kernels.into_iter().cloned().collect()))))
    }

    fn composition(&self, x: &Tensor) -> Result<Tensor> {
        let results = self.0.iter().map(|layer| layer.composition(x)).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&results, 1)
    }
}

/// One pass through the layers.
struct Kernels(Vec<Kernel>);

impl Kernels {
    fn outputs(&self) -> usize {
        self.0.iter().map(|kernel| kernel.outputs).sum()
    }

    /// Returns each layer with its first column in the result.
    fn placed(&self) -> impl DoubleEndedIterator<Item = (usize, &Kernel)> {
        let offsets = self.0.iter().scan(0, |end, kernel| {
            *end += kernel.outputs;
            Some(*end - kernel.outputs)
        });
        offsets.collect::<Vec<_>>().into_iter().zip(&self.0)
    }
}

impl Operation for Kernels {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        for kernel in &self.0 {
            kernel.shape(dims)?;
        }
        Ok(vec![dims[0], self.outputs()])
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        let (x, all) = (Matrix::new(x, dims[0], dims[1]), self.outputs());
        for (offset, kernel) in self.placed() {
            kernel.wait_for_param()?;
            kernel.with_values(|weight, _| product((&mut y[offset..], all), Fill::Set, x, weight))?;
        }
        Ok(())
    }

    fn backward(&self, dims: &[usize], [x, _, dy]: Backward<'_>, mut dx: Option<&mut [f32]>) -> Result<()> {
        let (rows, inputs) = (dims[0], dims[1]);
        let (x, all) = (Matrix::new(x, rows, inputs), self.outputs());
        for (number, (offset, kernel)) in self.placed().rev().enumerate() {
            let dy = Matrix::part(&dy[offset..], [rows, kernel.outputs], all);
            kernel.report(&mut |_, _| unreachable!("there is no bias"), &mut |target, fill| {
                transposed_product((target, kernel.outputs), fill, x, dy);
            });
            if let Some(dx) = &mut dx {
                let fill = if number == 0 { Fill::Set } else { Fill::Add };
                kernel.with_values(|weight, _| product_transposed((dx, inputs), fill, dy, weight))?;
            }
        }
        Ok(())
    }
}
