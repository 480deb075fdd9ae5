//! Memory that is kept from call to call.

use bytemuck::{Pod, Zeroable};

/// A cache line: what scratch is aligned to.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes on cache-line boundaries. They grow to the largest size asked for and stay.
///
/// Fresh pages cost more than a sum over them, so nothing is given back before the end.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    lines: Vec<Line>,
}

impl Scratch {
    /// The first `size_bytes` bytes, with whatever is in them.
    pub(crate) fn take(&mut self, size_bytes: usize) -> &mut [u8] {
        let lines = size_bytes.div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            self.lines.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..size_bytes]
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
        assert_eq!(first.align_offset(align_of::<Line>()), 0);
        assert_eq!(scratch.take(64).as_ptr(), first, "a smaller size is served from the same memory");
        assert!(scratch.take(0).is_empty());
    }
}
