//! The values of tensors, read and changed in place.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Tensor};

/// Copies values into a contiguous tensor in place, from another one of its shape.
pub(crate) fn overwrite(tensor: &Tensor, values: &Tensor) -> candle_core::Result<()> {
    // Flattened, since a scalar has no dimension to write along; detached, since this is not part of a derivative.
    tensor.detach().flatten_all()?.slice_set(&values.detach().flatten_all()?, 0, 0)
}

/// Calls `see` with the values of a contiguous tensor on the CPU, which it may change in place.
pub(crate) fn see(tensor: &Tensor, see: Seer<'_>) -> candle_core::Result<()> {
    tensor.inplace_op1(&See(RefCell::new(see)))
}

/// Calls a function with a tensor's values, which it may change in place.
struct See<'a>(RefCell<Seer<'a>>);

type Seer<'a> = &'a mut dyn FnMut(&mut [f32]);

impl InplaceOp1 for See<'_> {
    fn name(&self) -> &'static str {
        "with-values"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let CpuStorage::F32(values) = storage else { candle_core::bail!("expected a parameter of type f32") };
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("expected a contiguous parameter")
        };
        (self.0.borrow_mut())(&mut values[start..end]);
        Ok(())
    }
}
