//! Conversions of elements before the first and after the last operation on a block. They are done per block, while the block is in the
//! core's cache and other blocks may be in transit.

use std::ops::Range;

use unisono_collectives::Chunks;

use super::{Bound, Format, Run, scaled};
use crate::dtype::DType;
use crate::kernels::{self, ReduceOp};

impl<'a> Run<'a> {
    /// Widens the elements of a block from the user's buffer, if there is an accumulator.
    pub(super) fn widen(&mut self, block: usize) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.bound.format;
        let Some(accumulator) = accumulator else { return };
        for elements in self.block_by_chunks(block) {
            let narrow = &self.narrow[scaled(elements.clone(), wire_size_bytes)];
            (accumulator.codec.decode)(&mut self.held[scaled(elements, held_size_bytes)], narrow);
        }
    }

    /// Divides the sums of a block for a mean, and rounds them into the user's buffer.
    pub(super) fn finish(&mut self, block: usize) {
        let Bound { call, format: Format { accumulator, held_size_bytes, .. }, ref result, ranks, .. } =
            *self.bound;
        let dtype = accumulator.map_or(call.dtype, |_| DType::F32);
        for elements in self.block_by_chunks(block) {
            // A rank that sent its sum already holds it rounded, but others may not. So all ranks divide the rounded sum.
            self.round(&elements);
            if call.op == Some(ReduceOp::Mean) {
                let results = scaled(overlap(&elements, result), held_size_bytes);
                kernels::divide(dtype, &mut self.held[results], ranks);
                self.round(&elements);
            }
        }
    }

    /// Rounds accumulated elements, both in the user's buffer and in the accumulator.
    fn round(&mut self, elements: &Range<usize>) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.bound.format;
        let Some(accumulator) = accumulator else { return };
        let narrow = &mut self.narrow[scaled(elements.clone(), wire_size_bytes)];
        (accumulator.round)(&mut self.held[scaled(elements.clone(), held_size_bytes)], narrow);
    }

    /// Returns the elements of a block, which has a part of each chunk.
    fn block_by_chunks(&self, block: usize) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let bound = self.bound;
        let chunk_count = bound.partition.chunk_count();
        // A block of the whole array needs no division.
        let (ranges, size) = if bound.blocks == 1 { (1, chunk_count) } else { (chunk_count, 1) };
        let round = self.round;
        (0..ranges).map(move |range| {
            let all = bound.partition.elements(Chunks::new(range * size, (range + 1) * size));
            bound.elements_of_blocks(&all, block..block + 1, round)
        })
    }
}

/// Returns the intersection of two ranges; empty if they are disjoint.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
