//! A linear layer as one operation: one product forward, and backward two products and one sum, which write gradients
//! directly to their buckets.

use std::borrow::Cow;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::fused::{Function, values, with_all, with_values};
use super::parameters::{Parameters, bring, report};
use super::product::{Matrix, product, product_transposed, transposed_product};
use super::relu::Relu;
use unisono_train::Fill;

/// `x -> x weight + bias`, or `x -> max(x weight + bias, 0)`.
///
/// The weight is stored as `inputs x outputs`, the order in which the product reads it.
#[derive(Debug)]
pub struct Linear {
    parameters: Parameters,
    kernel: Kernel,
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
        Ok(Self { kernel: Kernel { bias: Some(Array { index, tensor }), ..layer.kernel }, ..layer })
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

    /// The same layer, followed by a ReLU.
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
        let (rows, inputs) = x.dims2()?;
        if inputs != self.kernel.inputs {
            bail!("a linear layer of {} inputs is given {rows} x {inputs}", self.kernel.inputs);
        }
        if !self.parameters.are_written_by_loops() {
            return self.kernel.composed(x);
        }
        let operation = Operation { kernel: self.kernel.bring()?, passes_on: x.track_op() };
        x.contiguous()?.apply_op2(self.parameters.anchor(), operation)
    }

    pub(super) fn parts(&self) -> (&Parameters, &Kernel) {
        (&self.parameters, &self.kernel)
    }
}

impl Kernel {
    /// The layer, composed of candle operations.
    pub(super) fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.tensor)?;
        let y = self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.tensor))?;
        if self.has_relu { Relu.composed(&y) } else { Ok(y) }
    }

    /// A copy for a forward pass, once the values are there.
    pub(super) fn bring(&self) -> Result<Self> {
        for array in self.bias.iter().chain([&self.weight]) {
            bring(array.index, &array.tensor)?;
        }
        Ok(self.clone())
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
        product(y, fill, x, weight);
        if self.has_relu {
            y.iter_mut().for_each(|y| *y = Relu::of(*y));
        }
    }

    /// The derivative with respect to the result of the product, from that with respect to `y`.
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

/// One forward pass through the layer, with its derivative.
struct Operation {
    kernel: Kernel,
    /// Whether an earlier layer needs a gradient.
    passes_on: bool,
}

impl CustomOp2 for Operation {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, &Kernel { inputs, outputs, .. }) = (values(x, x_layout)?, &self.kernel);
        let rows = x_layout.dims()[0];
        let mut y = vec![0.0; rows * outputs];
        let x = Matrix::new(x, rows, inputs);
        self.kernel.with_values(|weight, bias| self.kernel.of(weight, bias, x, &mut y))?;
        Ok((CpuStorage::F32(y), Shape::from((rows, outputs))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (rows, inputs) = x.dims2()?;
        let mut dx = vec![0.0; if self.passes_on { rows * inputs } else { 0 }];
        with_all([x, y, &dy.contiguous()?], |[x, y, dy]| -> Result<()> {
            let dy = self.kernel.before_relu(y, dy);
            let (x, rows_of_dy) = (Matrix::new(x, rows, inputs), Matrix::new(&dy, rows, self.kernel.outputs));
            self.kernel.report(&mut |target, fill| add_rows(target, fill, &dy), &mut |target, fill| {
                transposed_product(target, fill, x, rows_of_dy);
            });
            if self.passes_on {
                self.kernel.with_values(|weight, _| product_transposed(&mut dx, rows_of_dy, weight))?;
            }
            Ok(())
        })??;
        Ok((self.passes_on.then(|| Tensor::from_vec(dx, x.shape(), x.device())).transpose()?, None))
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
