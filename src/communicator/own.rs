//! All-gathers for the library's own use.

use super::Communicator;
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

    /// All-gathers elements, the same number from each rank, rank 0 first. All ranks call it.
    fn gather_alike<T: Element>(&mut self, own: &[T]) -> Result<Vec<T>> {
        let engine = self.seat.engine();
        engine.check_alive()?;
        let all = engine.gather(own);
        engine.settle(all)
    }
}
