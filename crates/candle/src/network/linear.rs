//! Linear layers. Each is one operation: one product forward, and backward two products and one sum, which write gradients
//! directly to their buckets. Layers of one input may be joined.

use std::borrow::Cow;

use candle_core::{Result, Shape, Tensor, bail};

use super::chain::chain;
use super::operation::{Function, Operation, Part};
use super::parameters::{Parameters, report, wait_for_param};
use super::product::{Matrix, product, product_transposed, transposed_product};
use super::rows::Relu;
use crate::values::{Backward, with_values};
use unisono_train::Fill;

/// `x -> x weight + bias`, or `x -> max(x weight + bias, 0)`.
///
/// The weight is stored as `inputs x outputs`, the order in which the product reads it.
#[derive(Debug)]
pub struct Linear {
    pub(crate) parameters: Parameters,
    pub(super) kernel: Kernel,
}

/// The function of a row that the layer computes.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    weight: Array,
    pub(super) bias: Option<Array>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    has_relu: bool,
}

/// A parameter of the layer.
#[derive(Debug, Clone)]
pub(super) struct Array {
    index: usize,
    tensor: Tensor,
}

impl Linear {
    /// Adds the layer `name`, with weights of variance `gain / inputs`: 2 preserves the spread of activations through a ReLU
    /// (Kaiming), 1 without one; and a zero bias.
    ///
    /// # Errors
    /// If a layer of this name exists.
    pub fn new(
        parameters: &Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        gain: f64,
    ) -> Result<Self> {
        let bias = format!("{name}.bias");
        let layer = Self::without_bias(parameters, &format!("{name}.weight"), inputs, outputs, gain)?;
        let (index, tensor) = parameters.add_plain(&bias, Shape::from(outputs), vec![0.0; outputs])?;
        let bias = Some(Array { index, tensor });
        Ok(Self { kernel: Kernel { bias, ..layer.kernel }, ..layer })
    }

    /// Adds a layer without a bias, whose weight has the name `name`.
    ///
    /// # Errors
    /// If a parameter of this name exists.
    pub fn without_bias(
        parameters: &Parameters,
        name: &str,
        inputs: usize,
        outputs: usize,
        gain: f64,
    ) -> Result<Self> {
        let values = parameters.even(name, inputs * outputs, (gain / inputs as f64).sqrt());
        let (index, tensor) = parameters.add_plain(name, Shape::from((inputs, outputs)), values)?;
        let weight = Array { index, tensor };
        let kernel = Kernel { weight, bias: None, inputs, outputs, has_relu: false };
        Ok(Self { parameters: parameters.clone(), kernel })
    }

    /// Adds a ReLU after the layer.
    #[must_use]
    pub fn with_relu(self) -> Self {
        Self { kernel: Kernel { has_relu: true, ..self.kernel }, ..self }
    }

    /// `x` is `rows x inputs`, the result `rows x outputs`. Call it at most once per pass: gradients of several calls
    /// would have to be accumulated. (For a layer used several times, create the weight with [`Parameters::add`].)
    ///
    /// # Errors
    /// If `x` has another shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        chain(&self.parameters, &[self], x)
    }
}

impl Kernel {
    /// Returns the layer, composed of candle operations.
    pub(super) fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.tensor)?;
        let y = self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.tensor))?;
        if self.has_relu { Relu.composed(&y) } else { Ok(y) }
    }

    /// Waits until the values are there.
    pub(super) fn wait_for_param(&self) -> Result<()> {
        let mut arrays = self.bias.iter().chain([&self.weight]);
        arrays.try_for_each(|array| wait_for_param(array.index, &array.tensor))
    }

    /// Calls `see` with the values of the weight, `inputs x outputs`, and the bias, which may be empty.
    pub(super) fn with_values<T>(&self, see: impl FnOnce(Matrix<'_>, &[f32]) -> T) -> Result<T> {
        with_values(&self.weight.tensor, |weight| {
            let weight = Matrix::new(weight, self.inputs, self.outputs);
            match &self.bias {
                Some(bias) => with_values(&bias.tensor, |bias| see(weight, bias)),
                None => Ok(see(weight, &[])),
            }
        })?
    }

    /// Computes the function of each row of `x`.
    pub(super) fn of(&self, weight: Matrix<'_>, bias: &[f32], x: Matrix<'_>, y: &mut [f32]) {
        let fill = if bias.is_empty() { Fill::Set } else { Fill::Add };
        if fill == Fill::Add {
            y.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
        }
        product((y, self.outputs), fill, x, weight);
        if self.has_relu {
            y.iter_mut().for_each(|y| *y = Relu::of(*y));
        }
    }

    /// Returns the derivative with respect to the result of the product, from that with respect to `y`.
    pub(super) fn before_relu<'a>(&self, y: &[f32], dy: &'a [f32]) -> Cow<'a, [f32]> {
        let masked = |(&dy, &y): (&f32, &f32)| if y == 0.0 { 0.0 } else { dy };
        if self.has_relu { dy.iter().zip(y).map(masked).collect() } else { Cow::Borrowed(dy) }
    }

    /// Reports the gradient of the bias, if there is one, and then that of the weight.
    pub(super) fn report(
        &self,
        bias: &mut dyn FnMut(&mut [f32], Fill),
        weight: &mut dyn FnMut(&mut [f32], Fill),
    ) {
        if let Some(array) = &self.bias {
            report(array.index, bias);
        }
        report(self.weight.index, weight);
    }
}

impl Part for Linear {
    fn operation(&self) -> Result<Option<Box<dyn Operation>>> {
        Ok(Some(Box::new(self.kernel.clone())))
    }

    fn composition(&self, x: &Tensor) -> Result<Tensor> {
        self.kernel.composed(x)
    }
}

impl Operation for Kernel {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        match *dims {
            [rows, inputs] if inputs == self.inputs => Ok(vec![rows, self.outputs]),
            _ => bail!("a linear layer of {} inputs is given {dims:?}: expected [rows, inputs]", self.inputs),
        }
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        self.wait_for_param()?;
        self.with_values(|weight, bias| self.of(weight, bias, Matrix::new(x, dims[0], self.inputs), y))
    }

    fn backward(&self, dims: &[usize], [x, y, dy]: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        let dy = self.before_relu(y, dy);
        let (x, rows_of_dy) = (Matrix::new(x, dims[0], self.inputs), Matrix::new(&dy, dims[0], self.outputs));
        self.report(&mut |target, fill| add_rows(target, fill, &dy), &mut |target, fill| {
            transposed_product((target, self.outputs), fill, x, rows_of_dy);
        });
        let Some(dx) = dx else { return Ok(()) };
        self.with_values(|weight, _| product_transposed((dx, self.inputs), Fill::Set, rows_of_dy, weight))
    }
}

/// Sums all rows.
pub(super) fn add_rows(target: &mut [f32], fill: Fill, rows: &[f32]) {
    if fill == Fill::Set {
        target.fill(0.0);
    }
    for row in rows.chunks_exact(target.len()) {
        Fill::Add.write(target, row);
    }
}

/// Layers without bias and ReLU, and with equal numbers of inputs: `rows x inputs` to `rows x` the sum of their outputs.
pub(crate) struct Joined<'a, const N: usize>(pub(crate) [&'a Linear; N]);

impl<const N: usize> Part for Joined<'_, N> {
    fn operation(&self) -> Result<Option<Box<dyn Operation>>> {
        let kernels = self.0.map(|layer| &layer.kernel);
        assert!(
            kernels.iter().all(|kernel| kernel.bias.is_none() && !kernel.has_relu),
            "joined layers have no bias and no ReLU"
        );
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
