//! The values of tensors on the CPU.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, bail};

/// The values of a backward pass: inputs, results and the derivative with respect to results.
pub(crate) type Backward<'a> = [&'a [f32]; 3];

pub(crate) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice()?[start..end]),
        None => bail!("expected a contiguous tensor, not {layout:?}"),
    }
}

/// Calls `visit` with the values of contiguous tensors, in row-major order.
pub(crate) fn with_all<const N: usize, T>(
    tensors: [&Tensor; N],
    visit: impl FnOnce([&[f32]; N]) -> T,
) -> Result<T> {
    let lent = tensors.map(Tensor::storage_and_layout);
    let mut all = [&[] as &[f32]; N];
    for (part, (storage, layout)) in all.iter_mut().zip(&lent) {
        let Storage::Cpu(storage) = &**storage else { bail!("expected a tensor on the CPU") };
        *part = values(storage, layout)?;
    }
    Ok(visit(all))
}

/// Calls `visit` with the values of a contiguous tensor, in row-major order.
pub(crate) fn with_values<T>(tensor: &Tensor, visit: impl FnOnce(&[f32]) -> T) -> Result<T> {
    with_all([tensor], |[values]| visit(values))
}

/// Copies values into a contiguous tensor in place, from another one of its shape.
pub(crate) fn overwrite(tensor: &Tensor, values: &Tensor) -> Result<()> {
    // Flattened, since a scalar has no dimension to write along; detached, since this is not part of a derivative.
    tensor.detach().flatten_all()?.slice_set(&values.detach().flatten_all()?, 0, 0)
}

/// Calls `visit` with the values of a contiguous tensor on the CPU. It may change them in place.
pub(crate) fn visit(tensor: &Tensor, visit: &mut dyn FnMut(&mut [f32])) -> Result<()> {
    visit_storage(tensor, &mut |values, layout| {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("expected a contiguous parameter")
        };
        visit(&mut values[start..end]);
        Ok(())
    })
}

/// Calls `visit` with all values in the storage of a tensor on the CPU. It may change or replace them.
pub(crate) fn visit_storage(tensor: &Tensor, visit: VisitStorage<'_>) -> Result<()> {
    tensor.inplace_op1(&Visitor(RefCell::new(visit)))
}

struct Visitor<'a>(RefCell<VisitStorage<'a>>);

type VisitStorage<'a> = &'a mut dyn FnMut(&mut Vec<f32>, &Layout) -> Result<()>;

impl InplaceOp1 for Visitor<'_> {
    fn name(&self) -> &'static str {
        "visit-values"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(values) = storage else { bail!("expected a parameter of type f32") };
        (self.0.borrow_mut())(values, layout)
    }
}
