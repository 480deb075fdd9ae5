//! Parameters in memory that ranks share.

use candle_core::{Error, Result, Tensor};
use unisono::Communicator;

use crate::values::visit_storage;

/// Returns the tensor that `make` creates from rank 0's values, moved to memory that all ranks share. Called by all ranks, which are on one node, in
/// the same order. The other ranks may read the values after a collective with rank 0. The memory is freed when the process ends. The storage of
/// `make`'s tensor must consist of exactly these values.
pub(super) fn tensor(
    comm: &mut Communicator,
    own: Vec<f32>,
    make: impl FnOnce(Vec<f32>) -> Result<Tensor>,
) -> Result<Tensor> {
    let shared = comm.alloc_shared::<f32>(own.len()).map_err(Error::wrap)?;
    if comm.rank() == 0 {
        // SAFETY: no other rank reads before a collective.
        unsafe { shared.slice_mut(0..own.len()) }.copy_from_slice(&own);
    }
    let tensor = make(own)?;
    // The storage of the tensor is never dropped, so these values are never freed to the allocator, which did not allocate them.
    std::mem::forget(tensor.clone());
    visit_storage(&tensor, &mut |values, _| {
        assert_eq!(values.len(), shared.len(), "the values of a parameter are not all of its storage");
        // SAFETY: the memory is aligned, holds as many values, and is mapped until the process ends, since the mapping is never dropped. It is not
        // from the allocator, which matters only when a vector grows or is dropped. Candle never grows a storage, and this one is never dropped,
        // since a tensor that holds it was just leaked. Every rank has its own mapping, also if ranks are threads. In an update each rank writes its
        // part of the values, and reads no other. Collectives separate updates from the passes, in which all ranks read
        // (`unisono_strategies::central_storage`).
        *values = unsafe { Vec::from_raw_parts(shared.as_ptr(), shared.len(), shared.len()) };
        Ok(())
    })?;
    std::mem::forget(shared);
    Ok(tensor)
}
