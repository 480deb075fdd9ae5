//! Parameters in memory that ranks share.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Error, Result, Tensor};
use unisono::Communicator;

/// The ranks that share the values of a model's parameters.
#[derive(Debug, Clone)]
pub(super) struct Sharing(Arc<Mutex<Communicator>>);

impl Sharing {
    /// Among the ranks of this communicator, which must be on one node. Called by all of them.
    pub(super) fn among(comm: &mut Communicator) -> unisono::Result<Self> {
        let own = comm.split(Some(0), 0)?.expect("every rank says a color");
        Ok(Self(Arc::new(Mutex::new(own))))
    }

    /// A tensor that `make` makes of rank 0's values, and keeps in place; they exist once for all ranks. Called by all ranks in the
    /// same order. The others see the values once rank 0 has met them in a collective. Their memory is given back when the process
    /// ends.
    ///
    /// # Panics
    /// If `make` has put the values elsewhere.
    pub(super) fn tensor(
        &self,
        own: &[f32],
        make: impl FnOnce(Vec<f32>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut comm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = comm.alloc_shared::<f32>(own.len()).map_err(Error::wrap)?;
        if comm.rank() == 0 {
            // SAFETY: no other rank looks before a collective.
            unsafe { shared.slice_mut(0..own.len()) }.copy_from_slice(own);
        }
        let place = shared.as_ptr();
        // SAFETY: the memory is aligned, holds as many values, and is mapped as long as the process lives, since the mapping is never
        // dropped. It is not from the allocator, which matters to those who would give it back: `make` puts it into a tensor, which
        // neither grows nor is dropped, since a clone of it is kept. Every rank has a mapping of its own, threads too. In an update each
        // writes its part of the values, and reads no other; collectives separate that from the passes, in which all read
        // (`backend::central`).
        let values = unsafe { Vec::from_raw_parts(place, own.len(), own.len()) };
        std::mem::forget(shared);
        let tensor = make(values)?;
        std::mem::forget(tensor.clone());
        let mut found = place;
        super::see(&tensor, &mut |values| found = values.as_mut_ptr())?;
        assert_eq!(found, place, "the values of a parameter are not where ranks share them");
        Ok(tensor)
    }
}
