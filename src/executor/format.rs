//! The formats of elements: held during a collective, and on the wire.

use std::ops::Range;

use unisono_collectives::{Chunks, Combine, partition};

use super::{Bound, Run, scaled};
use crate::call::Call;
use crate::dtype::DType;
use crate::kernels::{self, Accumulator, Kernel, ReduceOp};
use crate::transport::Target;

/// The formats of elements: held during a collective, and on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) held_size_bytes: usize,
    pub(super) wire_size_bytes: usize,
    /// The reduction, if the operation reduces.
    reduce: Option<Kernel>,
    /// Set if elements are accumulated in a wider format than on the wire.
    pub(super) accumulator: Option<Accumulator>,
}

impl Format {
    /// The formats for the elements and the operation of a call, by a plan that `accumulates` or does not.
    pub(super) fn of(call: &Call, accumulates: bool) -> Self {
        let Call { dtype, op, .. } = *call;
        let accumulator = op.filter(|_| accumulates).and_then(|op| Accumulator::of(dtype, op));
        let wire_size_bytes = call.element_bytes();
        let kernel = op.map(|op| kernels::kernel(dtype, op));
        Self {
            held_size_bytes: accumulator.map_or(wire_size_bytes, |_| size_of::<f32>()),
            wire_size_bytes,
            reduce: accumulator.map(|accumulator| accumulator.reduce).or(kernel),
            accumulator,
        }
    }

    /// Where and how incoming elements are stored.
    pub(super) fn target<'a>(&self, held: &'a mut [u8], combine: Combine) -> Target<'a> {
        let decode = self.accumulator.map(|accumulator| accumulator.codec.decode);
        let kernel = match combine {
            Combine::Replace => decode,
            Combine::Reduce => Some(self.reduce.expect("an operation that reduces has a reduction")),
        };
        let (held_size_bytes, wire_size_bytes) = (self.held_size_bytes, self.wire_size_bytes);
        match kernel {
            None => Target::Place(held),
            Some(kernel) => Target::Apply { held, held_size_bytes, wire_size_bytes, kernel },
        }
    }
}

/// The work before and after the other operations on a block. It is done per block, while the block is in the core's cache and other
/// blocks may be in transit.
impl Run<'_> {
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
            // A rank that sent its sum already holds it rounded, others may not: all ranks divide the rounded sum.
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

    /// The elements of a block, which has a part of each chunk.
    fn block_by_chunks(&self, block: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let bound = self.bound;
        let chunks = if bound.blocks == 1 { 1 } else { bound.chunk_count };
        let count = bound.call.count;
        let (blocks, block) = (bound.blocks, block + self.round * bound.blocks_of_round());
        (0..chunks).map(move |chunk| {
            let all = partition::elements(count, chunks, Chunks::one(chunk));
            let part = partition::elements(all.len(), blocks, Chunks::one(block));
            all.start + part.start..all.start + part.end
        })
    }
}

/// The intersection of two ranges; empty if they are disjoint.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
