//! Chains of operations. Each chain is one operation to candle, which then does not zero the gradients within the chain and add to them. That would
//! take a tenth of a step.

use std::sync::OnceLock;

use candle_core::{CpuStorage, CustomOp2, DType, Device, Layout, Result, Shape, Tensor, bail};

use super::buffer::Buffer;
use super::operation::{Function, Operation, Part};
use super::parameters::{EVALUATION, Parameters};
use crate::values::{Backward, values, with_all};

/// Applies `function` to `x`: by its loops on the CPU, and composed of candle operations elsewhere.
///
/// # Errors
/// If `x` is not an `f32` tensor, or on a device that the function does not support.
pub fn apply(function: impl Function, x: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return Function::composed(&function, x);
    }
    let anchor = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
    let chain = Chain { operations: vec![Box::new(function)], kept: OnceLock::new() };
    x.contiguous()?.apply_op2(&anchor, chain)
}

/// Applies `parts` to `x` in sequence. On the CPU, they are one operation of candle.
pub(crate) fn chain(parameters: &Parameters, parts: &[&dyn Part], x: &Tensor) -> Result<Tensor> {
    let chain = Chain::new(parts);
    if !parameters.has_loops {
        return chain.composed(x);
    }
    x.contiguous()?.apply_op2(&parameters.anchor(), chain)
}

struct Chain {
    operations: Vec<Box<dyn Operation>>,
    /// The results of all operations but the last, from the forward pass.
    kept: OnceLock<Vec<Buffer>>,
}

impl Chain {
    fn new(parts: &[&dyn Part]) -> Self {
        let operations = parts.iter().filter_map(|part| part.operation()).collect();
        Self { operations, kept: OnceLock::new() }
    }

    /// Returns the shapes of the input and of all results.
    fn shapes(&self, dims: &[usize]) -> Result<Vec<Vec<usize>>> {
        let mut shapes = vec![dims.to_vec()];
        for operation in &self.operations {
            shapes.push(operation.shape(&shapes[shapes.len() - 1])?);
        }
        Ok(shapes)
    }
}

impl Operation for Chain {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        Ok(self.shapes(dims)?.pop().expect("there is an input"))
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        let shapes = self.shapes(dims)?;
        let (last, before) = self.operations.split_last().expect("a chain has an operation");
        let mut kept: Vec<Buffer> = Vec::with_capacity(before.len());
        for (operation, shapes) in before.iter().zip(shapes.windows(2)) {
            let mut result = Buffer::of(shapes[1].iter().product());
            operation.forward(&shapes[0], kept.last().map_or(x, |kept| kept), &mut result)?;
            if EVALUATION.is_set() {
                kept.clear();
            }
            kept.push(result);
        }
        last.forward(&shapes[before.len()], kept.last().map_or(x, |kept| kept), y)?;
        assert!(self.kept.set(kept).is_ok(), "an operation has one forward pass");
        Ok(())
    }

    fn backward(&self, dims: &[usize], [x, y, dy]: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        let shapes = self.shapes(dims)?;
        let kept = self.kept.get().expect("the forward pass comes first");
        let mut derivative: Option<Buffer> = None;
        for (at, operation) in self.operations.iter().enumerate().skip(1).rev() {
            let (x, y) = (&*kept[at - 1], kept.get(at).map_or(y, |kept| kept));
            let mut before = Buffer::of(x.len());
            let dy = derivative.as_deref().unwrap_or(dy);
            operation.backward(&shapes[at], [x, y, dy], Some(&mut before))?;
            derivative = Some(before);
        }
        let (y, dy) = (kept.first().map_or(y, |kept| kept), derivative.as_deref().unwrap_or(dy));
        self.operations[0].backward(dims, [x, y, dy], dx)
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        self.operations.iter().try_fold(x.clone(), |x, operation| operation.composed(&x))
    }
}

/// Parts whose result is added to their input, or to the result of `shortcut` for it.
pub(crate) struct Residual<'a> {
    pub(crate) parts: &'a [&'a dyn Part],
    pub(crate) shortcut: Option<&'a dyn Part>,
}

impl Part for Residual<'_> {
    fn operation(&self) -> Option<Box<dyn Operation>> {
        let shortcut = self.shortcut.and_then(Part::operation);
        Some(Box::new(Sum { chain: Chain::new(self.parts), shortcut, results: OnceLock::new() }))
    }
}

struct Sum {
    chain: Chain,
    shortcut: Option<Box<dyn Operation>>,
    /// The results of the chain and of the shortcut, from the forward pass.
    results: OnceLock<(Buffer, Option<Buffer>)>,
}

impl Operation for Sum {
    fn shape(&self, dims: &[usize]) -> Result<Vec<usize>> {
        let shape = self.chain.shape(dims)?;
        let short = self.shortcut.as_ref().map_or(Ok(dims.to_vec()), |shortcut| shortcut.shape(dims))?;
        if shape != short {
            bail!("a result of the shape {shape:?} cannot be added to one of the shape {short:?}");
        }
        Ok(shape)
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) -> Result<()> {
        let mut of_chain = Buffer::of(y.len());
        self.chain.forward(dims, x, &mut of_chain)?;
        let mut of_shortcut = self.shortcut.as_ref().map(|_| Buffer::of(y.len()));
        if let (Some(shortcut), Some(result)) = (&self.shortcut, &mut of_shortcut) {
            shortcut.forward(dims, x, result)?;
        }
        for ((y, x), short) in y.iter_mut().zip(&*of_chain).zip(of_shortcut.as_deref().unwrap_or(x)) {
            *y = short + x;
        }
        assert!(self.results.set((of_chain, of_shortcut)).is_ok(), "an operation has one forward pass");
        Ok(())
    }

    fn backward(&self, dims: &[usize], [x, _, dy]: Backward<'_>, dx: Option<&mut [f32]>) -> Result<()> {
        let (of_chain, of_shortcut) = self.results.get().expect("the forward pass comes first");
        let Some(dx) = dx else { return self.chain.backward(dims, [x, of_chain, dy], None) };
        self.chain.backward(dims, [x, of_chain, dy], Some(dx))?;
        let mut before = self.shortcut.as_ref().map(|_| Buffer::of(x.len()));
        if let (Some(shortcut), Some(y)) = (&self.shortcut, of_shortcut) {
            shortcut.backward(dims, [x, y, dy], before.as_deref_mut())?;
        }
        let short = before.as_deref().unwrap_or(dy);
        dx.iter_mut().zip(short).for_each(|(dx, short)| *dx += short);
        Ok(())
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let short = self.shortcut.as_ref().map_or(Ok(x.clone()), |shortcut| shortcut.composed(x))?;
        short + self.chain.composed(x)?
    }
}

/// The second argument is an anchor, which makes candle compute derivatives.
impl CustomOp2 for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from(self.shape(layout.dims())?);
        let mut y = vec![0.0; shape.elem_count()];
        self.forward(layout.dims(), values(x, layout)?, &mut y)?;
        Ok((CpuStorage::F32(y), shape))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // Only if an earlier layer needs a gradient.
        let mut dx = x.track_op().then(|| vec![0.0; x.elem_count()]);
        with_all([x, y, &dy.contiguous()?], |all| self.backward(x.dims(), all, dx.as_deref_mut()))??;
        Ok((dx.map(|dx| Tensor::from_vec(dx, x.shape(), x.device())).transpose()?, None))
    }
}
