//! How elements are held, and how they travel.

use unisono_collectives::Combine;

use crate::call::Call;
use crate::reduce::{self, Kernel, Widening};
use crate::transport::Target;

/// How elements are held while a collective runs, and how they travel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) held_size_bytes: usize,
    pub(super) wire_size_bytes: usize,
    /// The reduction, where the operation reduces.
    reduce: Option<Kernel>,
    /// Set where elements are held in a wider format than they travel in.
    pub(super) widening: Option<Widening>,
}

impl Format {
    pub(super) fn of(call: &Call, widening: Option<Widening>) -> Self {
        let wire_size_bytes = call.dtype.size_bytes();
        let kernel = call.op.map(|op| reduce::kernel(call.dtype, op));
        Self {
            held_size_bytes: widening.map_or(wire_size_bytes, |_| size_of::<f32>()),
            wire_size_bytes,
            reduce: widening.map(|widening| widening.reduce).or(kernel),
            widening,
        }
    }

    /// What becomes of elements that arrive.
    pub(super) fn target<'a>(&self, held: &'a mut [u8], combine: Combine) -> Target<'a> {
        let replace = self.widening.map(|widening| widening.replace);
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
