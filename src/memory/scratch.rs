//! Buffers kept between calls.

use super::registered::{Block, Registry};
use crate::error::Result;
use crate::kernels;

/// A page-aligned buffer, which grows to the largest size requested and is kept.
///
/// Page faults cost more than a sum over the pages, so the memory is kept until the buffer is dropped.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    registry: Registry,
    block: Option<Block>,
}

impl Scratch {
    /// Returns a buffer in registered memory, which the other ranks of the node can access.
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry, block: None }
    }

    /// Returns the first `size_bytes` bytes, with undefined contents.
    pub(crate) fn reserve(&mut self, size_bytes: usize) -> Result<&mut [u8]> {
        if self.block.as_ref().is_none_or(|block| block.size_bytes() < size_bytes) {
            // The old block is freed first, so that both are not needed at once.
            self.block = None;
            self.block = Some(self.registry.allocate(size_bytes)?);
        }
        let block = self.block.as_mut().expect("there is a block now");
        Ok(&mut block.as_mut_slice()[..size_bytes])
    }

    /// Returns `size_bytes` bytes, for a few pages or for a size that is [reserved](Self::reserve) already.
    pub(crate) fn take(&mut self, size_bytes: usize) -> &mut [u8] {
        self.reserve(size_bytes).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Result<&mut [u8]> {
        let copy = self.reserve(bytes.len())?;
        kernels::copy(copy, bytes);
        Ok(copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_and_kept() {
        let mut scratch = Scratch::default();
        let first = scratch.copy_of(&[7; 100]).unwrap().as_ptr();
        assert_eq!(first.align_offset(64), 0);
        assert_eq!(scratch.take(64).as_ptr(), first, "a smaller size is served from the same memory");
        assert!(scratch.take(0).is_empty());
        scratch.take(1 << 20)[(1 << 20) - 1] = 1;
    }

    #[test]
    fn unavailable_memory_is_an_error() {
        let mut scratch = Scratch::default();
        assert!(
            matches!(scratch.reserve(1 << 60), Err(crate::Error::Memory { size_bytes, .. }) if size_bytes == 1 << 60)
        );
        assert_eq!(scratch.reserve(100).unwrap().len(), 100, "the scratch is still usable");
    }
}
