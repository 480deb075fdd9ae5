//! All-gathers for the library's own use.

use unisono_collectives::{Algorithm, Operation};

use super::Communicator;
use crate::call::Call;
use crate::collective::Collective as _;
use crate::dtype::Element;
use crate::error::Result;

impl Communicator {
    /// All-gathers byte strings, rank 0 first; their lengths may differ. All ranks call it.
    pub(super) fn gather_bytes(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let sizes = self.gather_words(&[own.len() as u64])?;
        let room = sizes.iter().map(|size| size[0] as usize).max().unwrap_or(0);
        let mut padded = own.to_vec();
        padded.resize(room, 0);
        let all = self.gather_alike(&padded)?;
        Ok(sizes
            .iter()
            .enumerate()
            .map(|(rank, size)| all[rank * room..][..size[0] as usize].to_vec())
            .collect())
    }

    /// All-gathers words, the same number from each rank, rank 0 first. All ranks call it.
    pub(crate) fn gather_words(&mut self, own: &[u64]) -> Result<Vec<Vec<u64>>> {
        Ok(self.gather_alike(own)?.chunks(own.len()).map(<[u64]>::to_vec).collect())
    }

    /// All-gathers elements, the same number from each rank, by a fixed algorithm.
    fn gather_alike<T: Element>(&mut self, own: &[T]) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); own.len() * self.ranks()];
        all[self.rank() * own.len()..][..own.len()].copy_from_slice(own);
        let call = Call { operation: Operation::AllGather, op: None, dtype: T::DTYPE, count: all.len() };
        self.collective(Algorithm::Butterfly)?.run(&call, bytemuck::cast_slice_mut(&mut all))?;
        Ok(all)
    }
}
