//! A rank's view of a single pass: its own range of the buffers of all ranks.

use std::ops::Range;

use super::reach::{KERNEL_BLOCK_BYTES, Reach, Start};
use crate::error::Result;
use crate::kernels;
use crate::memory::Scratch;

/// The ranges of all ranks in a single pass, and how other ranks access this rank's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares<F> {
    /// The byte range of each rank. The rank works on it in this rank's buffer, and this rank works on its own range in all buffers. The ranges do
    /// not overlap.
    pub(crate) ranges: F,
    /// An upper bound of the sizes of all ranges, identical on all ranks.
    pub(crate) share_bytes: usize,
    /// Whether other ranks read their ranges of this rank's buffer.
    pub(crate) read: bool,
    /// Whether other ranks write to them.
    pub(crate) written: bool,
}

/// One range of the buffers of all ranks, which no other rank accesses.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    /// This rank's whole buffer, in which other ranks have their own ranges.
    buffer: *mut [u8],
    range: Range<usize>,
    /// Whether other ranks access a copy of this rank's buffer.
    is_copy: bool,
    /// The start of the range in the buffer of each other rank.
    starts: &'a [Start],
    reach: &'a mut Reach,
    copy: &'a mut Scratch,
    /// Whether this rank has read copies that others lend. Those then read its copies likewise, and do not write to them.
    pub(super) took_copies: bool,
}

impl<'a> Open<'a> {
    pub(super) fn new(
        buffer: *mut [u8],
        range: Range<usize>,
        is_copy: bool,
        (starts, reach, copy): (&'a [Start], &'a mut Reach, &'a mut Scratch),
    ) -> Self {
        assert!(range.end <= buffer.len(), "the range {range:?} in a buffer of {} bytes", buffer.len());
        Self { buffer, range, is_copy, starts, reach, copy, took_copies: false }
    }

    /// Returns the range in this rank's buffer.
    pub(crate) fn own(&mut self) -> &mut [u8] {
        self.own_part(0..self.range.len()).0
    }

    /// Returns a part of the range in this rank's buffer, and the access to other ranks' memory.
    fn own_part(&mut self, part: Range<usize>) -> (&mut [u8], &mut Reach) {
        let Range { start, end } = self.range;
        assert!(part.start <= part.end && part.end <= end - start, "a part of the range");
        // SAFETY: the part is inside the range, which is inside the buffer (see `new`), and which no other rank accesses. `self` is borrowed
        // mutably.
        let own = unsafe {
            std::slice::from_raw_parts_mut(self.buffer.cast::<u8>().add(start + part.start), part.len())
        };
        (own, self.reach)
    }

    /// Returns the best block size for this range, where `preferred` is best for mapped memory.
    pub(crate) fn block_bytes(&self, preferred: usize) -> usize {
        let elsewhere = |start: &Start| matches!(start, Start::Elsewhere(_));
        if self.starts.iter().any(elsewhere) { KERNEL_BLOCK_BYTES } else { preferred }
    }

    /// Returns a part of the range in this rank's buffer and in another rank's, if that is mapped.
    pub(crate) fn mapped(&mut self, other: usize, part: Range<usize>) -> Option<(&mut [u8], &mut [u8])> {
        let Start::Mapped { start, .. } = self.starts[other] else { return None };
        let (own, _) = self.own_part(part.clone());
        // SAFETY: the other rank lends the range to this one, and to no other, until this one releases it. The part is inside the range, which has
        // the same size in both buffers, and `self` is borrowed mutably.
        Some((own, unsafe { std::slice::from_raw_parts_mut(start.add(part.start), part.len()) }))
    }

    /// Returns a part of the range in this rank's buffer, and the other rank's values there, to reduce them.
    ///
    /// They are claimed, as in [`Open::get`]: usually the other rank writes them again before the next pass.
    pub(crate) fn both(&mut self, other: usize, part: Range<usize>) -> (&mut [u8], &[u8]) {
        let (own, theirs) = self.mapped(other, part).expect("what is reduced is mapped");
        kernels::claim(theirs);
        (own, theirs)
    }

    /// Copies this rank's values of a part of the range to another rank.
    pub(crate) fn put(&mut self, other: usize, part: Range<usize>) -> Result<()> {
        if let Start::Elsewhere(address) = self.starts[other] {
            let (own, reach) = self.own_part(part.clone());
            return reach.by_kernel().store(other, address + part.start as u64, own);
        }
        let (own, theirs) = self.mapped(other, part).expect("it is mapped");
        kernels::copy(theirs, own);
        Ok(())
    }

    /// Copies another rank's values of a part of the range to this one.
    pub(crate) fn get(&mut self, other: usize, part: Range<usize>) -> Result<()> {
        if let Start::Elsewhere(address) = self.starts[other] {
            let (own, reach) = self.own_part(part.clone());
            return reach.by_kernel().fetch(other, address + part.start as u64, own);
        }
        let (own, theirs) = self.mapped(other, part).expect("it is mapped");
        kernels::take(own, theirs);
        Ok(())
    }

    /// Swaps a half of the ranges with another rank: a half of this rank's range in the other's buffer, and of `theirs`, the other's range in this
    /// rank's buffer. The other rank swaps the other half.
    pub(crate) fn swap(&mut self, other: usize, theirs: Range<usize>, half: Range<usize>) -> Result<()> {
        let size_bytes = self.range.len();
        assert!(theirs.len() == size_bytes && theirs.end <= self.buffer.len(), "ranges of the same size");
        assert!(half.start <= half.end && half.end <= size_bytes, "a half of the range");
        let part = match (self.is_copy, self.starts[other]) {
            (false, Start::Mapped { is_copy: false, .. } | Start::Elsewhere(_)) => half,
            // The owner of a lent copy copies it back as this rank leaves it.
            (_, Start::Mapped { is_copy: true, .. }) => 0..size_bytes,
            (true, _) => return Ok(()),
        };
        // SAFETY: of the two ranks' ranges in each other's buffers, this rank accesses this part, and the other rank the rest. If copies are
        // lent, only this rank accesses its own buffer. The part is inside the buffer, and `self` is borrowed mutably.
        let own = unsafe {
            let start = self.buffer.cast::<u8>().add(theirs.start + part.start);
            std::slice::from_raw_parts_mut(start, part.len())
        };
        match self.starts[other] {
            Start::Mapped { start, is_copy } => {
                // SAFETY: the other rank lends its range to this one, which accesses this part of it. It does not overlap this rank's buffer.
                let lent = unsafe { std::slice::from_raw_parts_mut(start.add(part.start), part.len()) };
                self.took_copies = is_copy && self.is_copy;
                if self.took_copies {
                    kernels::take(own, lent);
                } else {
                    own.swap_with_slice(lent);
                }
                Ok(())
            }
            Start::Elsewhere(address) => {
                let mut address = address + part.start as u64;
                for own in own.chunks_mut(KERNEL_BLOCK_BYTES) {
                    let copy = self.copy.reserve(own.len())?;
                    self.reach.by_kernel().fetch(other, address, copy)?;
                    self.reach.by_kernel().store(other, address, own)?;
                    kernels::copy(own, copy);
                    address += own.len() as u64;
                }
                Ok(())
            }
        }
    }
}
