//! A linear layer as one operation: one product forward, and backward two products and one sum, which write gradients
//! directly to their buckets.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};

use super::fused::{Function, values, with_values};
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
    weight: Array,
    bias: Option<Array>,
    inputs: usize,
    outputs: usize,
    has_relu: bool,
}

/// A parameter of the layer.
#[derive(Debug, Clone)]
struct Array {
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
        Ok(Self { bias: Some(Array { index, tensor }), ..layer })
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
        let (parameters, weight) = (parameters.clone(), Array { index, tensor });
        Ok(Self { parameters, weight, bias: None, inputs, outputs, has_relu: false })
    }

    /// The same layer, followed by a ReLU.
    #[must_use]
    pub fn with_relu(self) -> Self {
        Self { has_relu: true, ..self }
    }

    /// `x` is `rows x inputs`, the result `rows x outputs`. Call it at most once per pass: gradients of several calls
    /// would have to be accumulated. (For a layer used several times, create the weight with [`Parameters::add`].)
    ///
    /// # Errors
    /// If `x` has another shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        if inputs != self.inputs {
            bail!("a linear layer of {} inputs is given {rows} x {inputs}", self.inputs);
        }
        if !self.parameters.are_written_by_loops() {
            return self.composed(x);
        }
        for array in self.bias.iter().chain([&self.weight]) {
            bring(array.index, &array.tensor)?;
        }
        let operation = Operation {
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            inputs,
            outputs: self.outputs,
            has_relu: self.has_relu,
            passes_on: x.track_op(),
        };
        x.contiguous()?.apply_op2(self.parameters.anchor(), operation)
    }

    /// The layer, composed of candle operations.
    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.tensor)?;
        let y = self.bias.as_ref().map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.tensor))?;
        if self.has_relu { Relu.composed(&y) } else { Ok(y) }
    }
}

/// One forward pass through the layer, with its derivative.
struct Operation {
    weight: Array,
    bias: Option<Array>,
    inputs: usize,
    outputs: usize,
    has_relu: bool,
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
        let x = values(x, x_layout)?;
        let rows = x.len() / self.inputs;
        let mut y = Vec::with_capacity(rows * self.outputs);
        let fill = match &self.bias {
            None => {
                y.resize(rows * self.outputs, 0.0);
                Fill::Set
            }
            Some(bias) => {
                with_values(&bias.tensor, |bias| (0..rows).for_each(|_| y.extend_from_slice(bias)))?;
                Fill::Add
            }
        };
        with_values(&self.weight.tensor, |weight| {
            let weight = Matrix::new(weight, self.inputs, self.outputs);
            product(&mut y, fill, Matrix::new(x, rows, self.inputs), weight);
        })?;
        if self.has_relu {
            y.iter_mut().for_each(|y| *y = Relu::of(*y));
        }
        Ok((CpuStorage::F32(y), Shape::from((rows, self.outputs))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let rows = x.dims2()?.0;
        let dy = dy.contiguous()?;
        let mut masked = Vec::new();
        let dx = with_values(&dy, |dy| -> Result<_> {
            let dy = if self.has_relu {
                with_values(y, |y| {
                    masked.extend(dy.iter().zip(y).map(|(&dy, &y)| if y == 0.0 { 0.0 } else { dy }));
                })?;
                &masked
            } else {
                dy
            };
            if let Some(bias) = &self.bias {
                report(bias.index, &mut |target, fill| add_rows(target, fill, dy));
            }
            let dy = Matrix::new(dy, rows, self.outputs);
            with_values(x, |x| {
                let x = Matrix::new(x, rows, self.inputs);
                report(self.weight.index, &mut |target, fill| transposed_product(target, fill, x, dy));
            })?;
            if !self.passes_on {
                return Ok(None);
            }
            let mut dx = vec![0.0; rows * self.inputs];
            with_values(&self.weight.tensor, |weight| {
                product_transposed(&mut dx, dy, Matrix::new(weight, self.inputs, self.outputs));
            })?;
            Tensor::from_vec(dx, x.shape(), x.device()).map(Some)
        })??;
        Ok((dx, None))
    }
}

/// Sums all rows.
fn add_rows(target: &mut [f32], fill: Fill, rows: &[f32]) {
    if fill == Fill::Set {
        target.fill(0.0);
    }
    for row in rows.chunks_exact(target.len()) {
        Fill::Add.write(target, row);
    }
}
