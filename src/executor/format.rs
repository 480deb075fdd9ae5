//! The formats of elements: held during a collective, and on the wire.

use std::ops::Range;

use unisono_collectives::{Chunks, Combine};

use super::{Run, scaled};
use crate::call::Call;
use crate::dtype::DType;
use crate::kernels::{self, Accumulator, Kernel, ReduceOp};
use crate::transport::Target;

/// The formats of elements: held during a collective, and on the wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    /// The type and the width of the elements, the operation, and whether the plan accumulates.
    of: (DType, u16, Option<ReduceOp>, bool),
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
        let Call { dtype, op, width, .. } = *call;
        let accumulator = op.filter(|_| accumulates).and_then(|op| Accumulator::of(dtype, op));
        let wire_size_bytes = call.element_bytes();
        let kernel = op.map(|op| kernels::kernel(dtype, op));
        Self {
            of: (dtype, width, op, accumulates),
            held_size_bytes: accumulator.map_or(wire_size_bytes, |_| size_of::<f32>()),
            wire_size_bytes,
            reduce: accumulator.map(|accumulator| accumulator.reduce).or(kernel),
            accumulator,
        }
    }

    pub(super) fn is_of(&self, call: &Call, accumulates: bool) -> bool {
        self.of == (call.dtype, call.width, call.op, accumulates)
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

/// The work before and after the steps of a block. It is done per block, while the block is in the core's cache and other blocks
/// may be in transit.
impl<'a> Run<'a> {
    /// Widens the elements of this block from the user's buffer, if there is an accumulator.
    pub(super) fn take_up_block(&mut self, held: &mut [u8]) {
        let Some(accumulator) = self.format.accumulator else { return };
        for elements in self.block_by_chunks() {
            let narrow = &self.narrow[scaled(elements.clone(), self.format.wire_size_bytes)];
            (accumulator.codec.decode)(&mut held[scaled(elements, self.format.held_size_bytes)], narrow);
        }
    }

    /// Divides the sums of this block for a mean, and rounds them into the user's buffer.
    pub(super) fn hand_over_block(&mut self, held: &mut [u8]) {
        let Self { task, format: Format { accumulator, held_size_bytes, .. }, .. } = *self;
        let is_mean = task.call.op == Some(ReduceOp::Mean);
        if accumulator.is_none() && !is_mean {
            return;
        }
        let dtype = accumulator.map_or(task.call.dtype, |_| DType::F32);
        for elements in self.block_by_chunks() {
            // A rank that sent its sum already holds it rounded, others may not: all ranks divide the rounded sum.
            self.round(&elements, held);
            if is_mean {
                let results = scaled(overlap(&elements, &self.result), held_size_bytes);
                kernels::divide(dtype, &mut held[results], task.topology.ranks());
                self.round(&elements, held);
            }
        }
    }

    /// Rounds accumulated elements, both in the user's buffer and in the accumulator.
    fn round(&mut self, elements: &Range<usize>, held: &mut [u8]) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.format;
        let Some(accumulator) = accumulator else { return };
        let narrow = &mut self.narrow[scaled(elements.clone(), wire_size_bytes)];
        (accumulator.round)(&mut held[scaled(elements.clone(), held_size_bytes)], narrow);
    }

    /// The elements of this block, which has a part of each chunk.
    fn block_by_chunks(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (task, block, blocks) = (self.task, self.block, self.blocks);
        (0..task.compiled.plan().chunk_count())
            .map(move |chunk| task.elements_of_block(Chunks::one(chunk), block, blocks))
    }
}

/// The intersection of two ranges; empty if they are disjoint.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
