//! Memory that is kept from call to call.

use std::sync::Arc;

use super::registered::{Block, Registry};

/// Bytes that begin at a page. They grow to the largest size asked for and stay.
///
/// Fresh pages cost more than a sum over them, so nothing is given back before the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    registry: Arc<Registry>,
    block: Option<Block>,
}

impl Default for Scratch {
    /// Scratch that no other rank reads.
    fn default() -> Self {
        Self::new(Registry::of_threads())
    }
}

impl Scratch {
    /// Scratch in registered memory, which the other ranks of the node reach too.
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self { registry, block: None }
    }

    /// The first `size_bytes` bytes, with whatever is in them.
    ///
    /// # Panics
    /// If the system has no memory left.
    pub(crate) fn take(&mut self, size_bytes: usize) -> &mut [u8] {
        if self.block.as_ref().is_none_or(|block| block.size_bytes() < size_bytes) {
            // The outgrown memory goes first, so that both are not needed at once.
            self.block = None;
            self.block = Some(self.registry.allocate(size_bytes).unwrap_or_else(|error| panic!("{error}")));
        }
        let block = self.block.as_mut().expect("there is a block now");
        &mut block.as_mut_slice()[..size_bytes]
    }

    /// A copy of these bytes.
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> &mut [u8] {
        let copy = self.take(bytes.len());
        copy.copy_from_slice(bytes);
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
