//! Buffers kept between calls.

use std::sync::Arc;

use super::registered::{Block, Registry};
use crate::kernels;

/// A page-aligned buffer, which grows to the largest size requested and is kept.
///
/// Fresh pages cost more than a sum over them, so nothing is freed before the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    registry: Arc<Registry>,
    block: Option<Block>,
}

impl Default for Scratch {
    /// A buffer that no other rank reads.
    fn default() -> Self {
        Self::new(Registry::of_threads())
    }
}

impl Scratch {
    /// A buffer in registered memory, which the other ranks of the node can access.
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self { registry, block: None }
    }

    /// The first `size_bytes` bytes, with undefined contents.
    ///
    /// # Panics
    /// If the system is out of memory.
    pub(crate) fn take(&mut self, size_bytes: usize) -> &mut [u8] {
        if self.block.as_ref().is_none_or(|block| block.size_bytes() < size_bytes) {
            // Freed first, so that both are not needed at once.
            self.block = None;
            self.block = Some(self.registry.allocate(size_bytes).unwrap_or_else(|error| panic!("{error}")));
        }
        let block = self.block.as_mut().expect("there is a block now");
        &mut block.as_mut_slice()[..size_bytes]
    }

    /// A copy of these bytes.
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> &mut [u8] {
        let copy = self.take(bytes.len());
        kernels::copy(copy, bytes);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_aligned_and_kept() {
        let mut scratch = Scratch::default();
        let first = scratch.copy_of(&[7; 100]).as_ptr();
        assert_eq!(first.align_offset(64), 0);
        assert_eq!(scratch.take(64).as_ptr(), first, "a smaller size is served from the same memory");
        assert!(scratch.take(0).is_empty());
        scratch.take(1 << 20)[(1 << 20) - 1] = 1;
    }
}
