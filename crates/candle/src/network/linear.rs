//! Linear layers. Each is one operation, with one product in the forward pass, and two products and one sum in the backward pass. They write
//! gradients directly to their buckets. Layers with the same input may be joined.

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use super::chain::chain;
use super::operation::{Function, Operation};
use super::parameters::{Parameters, Weight};
use super::product::{Matrix, product, product_transposed};
use super::rows::Relu;
use crate::values::{Backward, with_values};
use unisono_train::Fill;

/// `x -> x weight + bias`, or `x -> max(x weight + bias, 0)`.
///
/// The weight is stored as `inputs x outputs`, the order in which the product reads it.
#[derive(Debug, Clone)]
pub struct Linear {
    pub(crate) parameters: Parameters,
    /// The weight, or the weights of [joined](Self::joined) layers, each with its columns in the result.
    pub(super) weights: Vec<(Weight, Range<usize>)>,
    pub(super) bias: Option<Weight>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    has_relu: bool,
}

impl Linear {
    /// Adds the layer `name`, with weights of variance `gain / inputs` and a bias of zero. A gain of 2 preserves the spread of activations through a
    /// ReLU (Kaiming), and 1 without one.
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
        let layer = Self::without_bias(parameters, &format!("{name}.weight"), inputs, outputs, gain)?;
        let bias = parameters.add_weight(&format!("{name}.bias"), outputs, vec![0.0; outputs])?;
        Ok(Self { bias: Some(bias), ..layer })
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
        let weights = vec![(parameters.add_weight(name, (inputs, outputs), values)?, 0..outputs)];
        Ok(Self { parameters: parameters.clone(), weights, bias: None, inputs, outputs, has_relu: false })
    }

    /// Adds a ReLU after the layer.
    #[must_use]
    pub fn with_relu(self) -> Self {
        Self { has_relu: true, ..self }
    }

    /// Appends the results of another layer with the same input. Neither layer has a bias or a ReLU.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        let is_plain = |layer: &Self| layer.bias.is_none() && !layer.has_relu && layer.inputs == self.inputs;
        assert!(is_plain(&self) && is_plain(&other), "joined layers have one input, no bias and no ReLU");
        for (weight, columns) in other.weights {
            self.weights.push((weight, self.outputs + columns.start..self.outputs + columns.end));
        }
        self.outputs += other.outputs;
        self
    }

    /// Applies the layer to `x`, `rows x inputs`. The result is `rows x outputs`. Call it at most once per pass: the gradients of several calls would
    /// have to be accumulated. (For a layer used several times, create the weight with [`Parameters::add`].)
    ///
    /// # Errors
    /// If `x` has another shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        chain(&self.parameters, &[self], x)
    }

    pub(super) fn wait(&self) -> Result<()> {
        self.bias.iter().chain(self.weights.iter().map(|(weight, _)| weight)).try_for_each(Weight::wait)
    }

    /// Applies the layer to each row of `x`.
    pub(super) fn of(&self, x: Matrix<'_>, y: &mut [f32]) -> Result<()> {
        if let Some(bias) = &self.bias {
            with_values(&bias.tensor, |bias| {
                y.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
            })?;
        }
        let fill = if self.bias.is_some() { Fill::Add } else { Fill::Set };
        for (weight, columns) in &self.weights {
            with_values(&weight.tensor, |weight| {
                let weight = Matrix::new(weight, self.inputs, columns.len());
                product((&mut y[columns.start..], self.outputs), fill, x, weight);
            })?;
        }
        if self.has_relu {
            y.iter_mut().for_each(|y| *y = Relu::of(*y));
        }
        Ok(())
    }

    /// Returns the derivative with respect to the result of the product, given the derivative with respect to `y`.
    pub(super) fn before_relu<'a>(&self, y: &[f32], dy: &'a [f32]) -> Cow<'a, [f32]> {
        let masked = |(&dy, &y): (&f32, &f32)| Relu::derivative(y, dy);
        if self.has_relu { dy.iter().zip(y).map(masked).collect() } else { Cow::Borrowed(dy) }
    }

    /// Writes the derivative with respect to `x`, given the derivative with respect to the result of the product.
    pub(super) fn before_product(&self, rows: usize, dy: &[f32], dx: &mut [f32]) -> Result<()> {
        // Starts with the last columns, the order in which gradients are reported.
        for (weight, columns) in self.weights.iter().rev() {
            let fill = if columns.end == self.outputs { Fill::Set } else { Fill::Add };
            with_values(&weight.tensor, |weight| {
                let weight = Matrix::new(weight, self.inputs, columns.len());
                product_transposed((dx, self.inputs), fill, self.part(rows, dy, columns), weight);
            })?;
        }
        Ok(())
    }

    /// Returns these columns of `rows x outputs`.
    fn part<'a>(&self, rows: usize, values: &'a [f32], columns: &Range<usize>) -> Matrix<'a> {
        Matrix::part(&values[columns.start..], [rows, columns.len()], self.outputs)
    }
}

impl Operation for Linear {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        match *dims {
            [rows, inputs] if inputs == self.inputs => Ok(vec![rows, self.outputs]),
            _ => bail!("a linear layer of {} inputs is given {dims:?}: expected [rows, inputs]", self.inputs),
        }
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        self.wait()?;
        self.of(Matrix::new(x, dims[0], self.inputs), y)
    }

    fn backward(&self, dims: &[usize], [x, y, dy]: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        let (rows, dy) = (dims[0], self.before_relu(y, dy));
        if let Some(bias) = &self.bias {
            bias.report(&mut |target, fill| add_rows(target, fill, &dy));
        }
        let x = Matrix::new(x, rows, self.inputs).transposed();
        for (weight, columns) in self.weights.iter().rev() {
            let dy = self.part(rows, &dy, columns);
            weight.report(&mut |target, fill| product((target, columns.len()), fill, x, dy));
        }
        dx.map_or(Ok(()), |dx| self.before_product(rows, &dy, dx))
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.weights.iter().map(|(weight, _)| x.matmul(&weight.tensor));
        let y = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 1)?;
        let y = self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.tensor))?;
        if self.has_relu { Function::composed(&Relu, &y) } else { Ok(y) }
    }
}

pub(super) fn add_rows(target: &mut [f32], fill: Fill, rows: &[f32]) {
    if fill == Fill::Set {
        target.fill(0.0);
    }
    for row in rows.chunks_exact(target.len()) {
        Fill::Add.write(target, row);
    }
}
