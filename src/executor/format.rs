//! How elements are held, and how they travel.

use std::ops::Range;

use unisono_collectives::{Chunks, Combine};

use super::{Run, scaled};
use crate::dtype::DType;
use crate::kernels::{self, Accumulator, Kernel, ReduceOp};
use crate::transport::Target;

/// How elements are held while a collective runs, and how they travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) held_size_bytes: usize,
    pub(super) wire_size_bytes: usize,
    /// The reduction, where the operation reduces.
    reduce: Option<Kernel>,
    /// Set where elements are held in a wider format than they travel in.
    pub(super) accumulator: Option<Accumulator>,
}

impl Format {
    pub(super) fn of(dtype: DType, op: Option<ReduceOp>) -> Self {
        let accumulator = op.and_then(|op| Accumulator::of(dtype, op));
        let wire_size_bytes = dtype.size_bytes();
        let kernel = op.map(|op| kernels::kernel(dtype, op));
        Self {
            held_size_bytes: accumulator.map_or(wire_size_bytes, |_| size_of::<f32>()),
            wire_size_bytes,
            reduce: accumulator.map(|accumulator| accumulator.reduce).or(kernel),
            accumulator,
        }
    }

    /// What becomes of elements that arrive.
    pub(super) fn target<'a>(&self, held: &'a mut [u8], combine: Combine) -> Target<'a> {
        let replace = self.accumulator.map(|accumulator| accumulator.replace);
        let kernel = match combine {
            Combine::Replace => replace,
            Combine::Reduce => Some(self.reduce.expect("an operation that reduces has a reduction")),
        };
        let (held_size_bytes, wire_size_bytes) = (self.held_size_bytes, self.wire_size_bytes);
        match kernel {
            None => Target::Place(held),
            Some(kernel) => Target::Apply { held, held_size_bytes, wire_size_bytes, kernel },
        }
    }
}

/// What comes before a block's steps and after them: by block, since what the one leaves in a core's cache, the other needs, and
/// since other blocks may be on their way meanwhile.
impl<'a> Run<'a> {
    /// Takes the elements of this block from the user's buffer, where they are held in a wider format.
    pub(super) fn take_up_block(&mut self, held: &mut [u8]) {
        let Some(accumulator) = self.format.accumulator else { return };
        for elements in self.block_by_chunks() {
            let narrow = &self.narrow[scaled(elements.clone(), self.format.wire_size_bytes)];
            (accumulator.replace)(&mut held[scaled(elements, self.format.held_size_bytes)], narrow);
        }
    }

    /// Makes means of the sums in this block, and gives them back to the user's buffer.
    pub(super) fn hand_over_block(&mut self, held: &mut [u8]) {
        let Self { task, format: Format { accumulator, held_size_bytes, .. }, .. } = *self;
        let is_mean = task.call.op == Some(ReduceOp::Mean);
        if accumulator.is_none() && !is_mean {
            return;
        }
        let dtype = accumulator.map_or(task.call.dtype, |_| DType::F32);
        for elements in self.block_by_chunks() {
            // Who has sent its sum holds it rounded already, and others may not: all ranks divide the same.
            self.round(&elements, held);
            if is_mean {
                let results = scaled(overlap(&elements, &self.result), held_size_bytes);
                kernels::divide(dtype, &mut held[results], task.topology.ranks());
                self.round(&elements, held);
            }
        }
    }

    /// Rounds elements that are held in a wider format, in the user's buffer and where they are held.
    fn round(&mut self, elements: &Range<usize>, held: &mut [u8]) {
        let Format { accumulator, held_size_bytes, wire_size_bytes, .. } = self.format;
        let Some(accumulator) = accumulator else { return };
        let narrow = &mut self.narrow[scaled(elements.clone(), wire_size_bytes)];
        (accumulator.round)(&mut held[scaled(elements.clone(), held_size_bytes)], narrow);
    }

    /// The elements of this block: it has a part of each chunk.
    fn block_by_chunks(&self) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let (task, block, blocks) = (self.task, self.block, self.blocks);
        (0..task.compiled.plan().chunk_count())
            .map(move |chunk| task.elements_of_block(Chunks::one(chunk), block, blocks))
    }
}

/// What is in both ranges; empty where nothing is.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}
