//! The formats of elements: in memory during a collective, and on the wire.

use unisono_collectives::Combine;

use crate::call::Call;
use crate::kernels::{self, Accumulator, Definition, Kernel, ReduceOp};
use crate::transport::Target;

#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub(super) held_size_bytes: usize,
    pub(super) wire_size_bytes: usize,
    reduce: Option<Kernel>,
    /// The custom reduction, if any, which replaces a kernel.
    custom: Option<&'static Definition>,
    /// Set if elements are accumulated in a wider format than on the wire.
    pub(super) accumulator: Option<Accumulator>,
}

impl Format {
    /// Returns the formats for a call, by a plan that accumulates in a wider format or does not.
    pub(super) fn of(call: &Call, accumulates: bool) -> Self {
        let Call { dtype, op, .. } = *call;
        let accumulator = op.filter(|_| accumulates).and_then(|op| Accumulator::of(dtype, op));
        let wire_size_bytes = call.element_bytes();
        let custom = match op {
            Some(ReduceOp::Custom(custom)) => Some(custom.definition()),
            _ => None,
        };
        let kernel = op.filter(|_| custom.is_none()).map(|op| kernels::kernel(dtype, op));
        Self {
            held_size_bytes: accumulator.map_or(wire_size_bytes, |_| size_of::<f32>()),
            wire_size_bytes,
            reduce: accumulator.map(|accumulator| accumulator.reduce).or(kernel),
            custom,
            accumulator,
        }
    }

    pub(super) fn target<'a>(&self, held: &'a mut [u8], combine: Combine) -> Target<'a> {
        let decode = || self.accumulator.map(|accumulator| accumulator.codec.decode);
        // All kernels are commutative.
        let kernel = if combine.reduces() { self.reduce } else { decode() };
        let (held_size_bytes, wire_size_bytes) = (self.held_size_bytes as u32, self.wire_size_bytes as u32);
        match kernel {
            Some(kernel) => Target::Apply { held, held_size_bytes, wire_size_bytes, kernel },
            None if combine.reduces() => {
                let custom = self.custom.expect("an operation that reduces has a reduction");
                Target::Custom { held, element_bytes: wire_size_bytes, combine, custom }
            }
            None => Target::Place(held),
        }
    }
}
