//! The values of tensors on the CPU.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

/// The values of a backward pass: inputs, results and the derivative with respect to results.
pub(crate) type Backward<'a> = [&'a [f32]; 3];

/// Returns the values of a contiguous tensor.
pub(super) fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice()?[start..end]),
        None => bail!("expected a contiguous tensor, not {layout:?}"),
    }
}

/// Calls `see` with the values of contiguous tensors, in row-major order.
pub(super) fn with_all<const N: usize, T>(
    tensors: [&Tensor; N],
    see: impl FnOnce([&[f32]; N]) -> T,
) -> Result<T> {
    let lent = tensors.map(Tensor::storage_and_layout);
    let mut all = [&[] as &[f32]; N];
    for (part, (storage, layout)) in all.iter_mut().zip(&lent) {
        let Storage::Cpu(storage) = &**storage else { bail!("expected a tensor on the CPU") };
        *part = values(storage, layout)?;
    }
    Ok(see(all))
}

/// Calls `see` with the values of a contiguous tensor, in row-major order.
pub(crate) fn with_values<T>(tensor: &Tensor, see: impl FnOnce(&[f32]) -> T) -> Result<T> {
    with_all([tensor], |[values]| see(values))
}
