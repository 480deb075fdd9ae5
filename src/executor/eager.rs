//! Short calls among ranks that share memory: every message is eager, so a step copies into one slot and polls another, and
//! sends run before receives that they do not depend on.
//!
//! Byte ranges are computed once per kind of call.

use std::ops::Range;

use unisono_collectives::execution::{self, EagerStep, Place};
use unisono_collectives::{Combine, Plan, Rank, partition};

use super::error_at;
use super::format::Format;
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, ReduceOp};
use crate::method::Method;
use crate::transport::{Deadlines, Header, Incoming, Outgoing, Transport};

/// The steps of one rank for one kind of call, in bytes of the caller's buffer.
#[derive(Debug)]
pub(crate) struct EagerSteps {
    halves: Vec<(Half, Place)>,
    format: Format,
    /// The sums to divide at the end, for a mean.
    sums: Option<(DType, Range<usize>)>,
    /// A copy of the input, if steps need it; aligned for every type.
    original: Option<Vec<u64>>,
    ranks: usize,
    algorithm: &'static str,
}

/// An [`execution::Half`] in bytes.
#[derive(Debug)]
enum Half {
    Send { to: Rank, bytes: Range<usize> },
    Receive { from: Rank, bytes: Range<usize>, combine: Combine },
    Original { from: Range<usize>, to: Range<usize>, combine: Combine },
}

impl EagerSteps {
    /// Converts the halves of an execution to bytes.
    pub(crate) fn new(
        steps: &[EagerStep],
        plan: &Plan,
        call: &Call,
        method: Method,
        (rank, ranks): (Rank, usize),
    ) -> Self {
        let format = Format::of(call, false);
        let sums = (call.op == Some(ReduceOp::Mean))
            .then(|| (call.dtype, call.bytes_of(call.result_on(rank, ranks))));
        let bytes = |chunks| call.bytes_of(partition::elements(call.count, plan.chunk_count(), chunks));
        let half = |step: &EagerStep| match step.half {
            execution::Half::Send { to, chunks } => Half::Send { to, bytes: bytes(chunks) },
            execution::Half::Receive { from, chunks, combine } => {
                Half::Receive { from, bytes: bytes(chunks), combine }
            }
            execution::Half::Original { from, to, combine } => {
                Half::Original { from: bytes(from), to: bytes(to), combine }
            }
        };
        let halves: Vec<_> = steps.iter().map(|step| (half(step), step.place)).collect();
        let needs_original = halves.iter().any(|(half, _)| matches!(half, Half::Original { .. }));
        let original = needs_original.then(|| vec![0; call.size_bytes().div_ceil(size_of::<u64>())]);
        Self { halves, format, sums, original, ranks, algorithm: method.name() }
    }

    /// Carries out a call of this kind.
    #[inline]
    pub(crate) fn run(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        transport: &mut Transport,
        deadlines: &Deadlines,
    ) -> Result<()> {
        if let Some(original) = &mut self.original {
            kernels::copy(&mut bytemuck::cast_slice_mut(original)[..buffer.len()], buffer);
        }
        for (half, Place { name, phase, step }) in &self.halves {
            let (outgoing, incoming) = match half {
                Half::Send { to, bytes } => (Some(Outgoing { to: *to, bytes: &buffer[bytes.clone()] }), None),
                Half::Receive { from, bytes, combine } => {
                    if phase + step > 0 {
                        transport.status().at_step(*phase, *step);
                    }
                    let target = self.format.target(&mut buffer[bytes.clone()], *combine);
                    (None, Some(Incoming { from: *from, target }))
                }
                Half::Original { from, to, combine } => {
                    let original = self.original.as_ref().expect("it is there where it is needed");
                    let from = &bytemuck::cast_slice(original)[from.clone()];
                    self.format.target(&mut buffer[to.clone()], *combine).accept(0, from);
                    continue;
                }
            };
            transport
                .exchange(header, outgoing, incoming, deadlines)
                .map_err(|failure| error_at(failure, (header, self.algorithm), transport, name, *step))?;
        }
        if let Some((dtype, sums)) = &self.sums {
            kernels::divide(*dtype, &mut buffer[sums.clone()], self.ranks);
        }
        Ok(())
    }
}
