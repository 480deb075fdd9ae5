//! Short calls among ranks that share memory: every message is eager, so a step is a copy into one slot and a look at another, and
//! what a rank has, it sends before it waits.
//!
//! What is sent and received is found once for all calls that are alike.

use std::ops::Range;

use unisono_collectives::{Combine, Plan, Rank, Receive, Source, Step, partition};

use super::format::Format;
use super::{CompiledPlan, error_at};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, ReduceOp};
use crate::method::Method;
use crate::transport::{Deadlines, EAGER_BYTES, Header, Incoming, Outgoing, Transport};

/// What one rank does in all calls that are alike, in bytes of the caller's buffer.
#[derive(Debug)]
pub(crate) struct EagerSteps {
    /// Each send as early as what it reads is there ([`Schedule::earliest_sends`](unisono_collectives::Schedule::earliest_sends)).
    halves: Vec<(Half, Place)>,
    format: Format,
    /// The sums of which means are made in the end.
    sums: Option<(DType, Range<usize>)>,
    /// Room for what the buffer held before the first step, if this rank needs it itself; aligned for every type.
    original: Option<Vec<u64>>,
    ranks: usize,
    algorithm: &'static str,
}

/// A half of a step, or a step in which a rank meets itself.
#[derive(Debug)]
enum Half {
    Send { to: Rank, bytes: Range<usize> },
    Receive { from: Rank, bytes: Range<usize>, combine: Combine },
    Original { from: Range<usize>, to: Range<usize>, combine: Combine },
}

/// Where a step is: the name of its phase, its number, and the step's own there.
type Place = (&'static str, usize, usize);

impl EagerSteps {
    /// The steps of a call, where they can be carried out so.
    pub(crate) fn new(
        compiled: &CompiledPlan,
        call: &Call,
        method: Method,
        ranks: usize,
        transport: &Transport,
    ) -> Option<Self> {
        let format = Format::of(call.dtype, call.op);
        let in_one_pass = compiled.direct.is_some() && call.op.is_some();
        let has_vendor = !matches!(method, Method::Algorithm(_));
        let is_eager = call.size_bytes() <= EAGER_BYTES && transport.is_shared_by(ranks);
        if in_one_pass || format.accumulator.is_some() || has_vendor || !is_eager {
            return None;
        }
        let rank = transport.rank();
        let result = || call.bytes_of(call.result_on(rank, ranks));
        let sums = (call.op == Some(ReduceOp::Mean)).then(|| (call.dtype, result()));
        let halves = halves(&compiled.plan, call, rank)?;
        let needs_original = halves.iter().any(|(half, _)| matches!(half, Half::Original { .. }));
        let original = needs_original.then(|| vec![0; call.size_bytes().div_ceil(size_of::<u64>())]);
        Some(Self { halves, format, sums, original, ranks, algorithm: method.name() })
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
            bytemuck::cast_slice_mut(original)[..buffer.len()].copy_from_slice(buffer);
        }
        for (half, (phase_name, phase, number)) in &self.halves {
            let (outgoing, incoming) = match half {
                Half::Send { to, bytes } => (Some(Outgoing { to: *to, bytes: &buffer[bytes.clone()] }), None),
                Half::Receive { from, bytes, combine } => {
                    if phase + number > 0 {
                        transport.status().at_step(*phase, *number);
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
            transport.exchange(header, outgoing, incoming, deadlines).map_err(|failure| {
                error_at(failure, (header, self.algorithm), transport, phase_name, *number)
            })?;
        }
        if let Some((dtype, sums)) = &self.sums {
            kernels::divide(*dtype, &mut buffer[sums.clone()], self.ranks);
        }
        Ok(())
    }
}

/// All halves of a plan's steps, but for those in which this rank keeps what it has; `None` if it moves something else itself.
fn halves(plan: &Plan, call: &Call, rank: Rank) -> Option<Vec<(Half, Place)>> {
    let bytes = |chunks| call.bytes_of(partition::elements(call.count, plan.chunk_count(), chunks));
    let places = plan.phases().iter().enumerate().flat_map(|(number, phase)| {
        (0..phase.schedule.steps().len()).map(move |step| (phase.name, number, step))
    });
    let flattened = plan.flattened();
    let steps: Vec<_> = flattened.steps().iter().zip(places).collect();
    let to_others = |step: &Step| step.send.filter(|send| send.to != rank);
    let mut sends: Vec<_> = flattened.earliest_sends().into_iter().zip(&steps).collect();
    sends.sort_by_key(|(earliest, _)| *earliest);
    let mut sends = sends.into_iter().peekable();
    let mut halves = Vec::new();
    for (number, (step, place)) in steps.iter().enumerate() {
        while let Some((_, (step, place))) = sends.next_if(|(earliest, _)| *earliest <= number) {
            let send = to_others(step).map(|send| Half::Send { to: send.to, bytes: bytes(send.chunks) });
            halves.extend(send.map(|send| (send, *place)));
        }
        let half = match (step.send, step.receive) {
            (_, None) => continue,
            (_, Some(Receive { from, chunks, combine })) if from != rank => {
                Half::Receive { from, bytes: bytes(chunks), combine }
            }
            (Some(send), Some(receive)) if send.source == Source::Original => {
                let (from, to) = (bytes(send.chunks), bytes(receive.chunks));
                Half::Original { from, to, combine: receive.combine }
            }
            (Some(send), Some(receive))
                if send.chunks == receive.chunks && receive.combine == Combine::Replace =>
            {
                continue;
            }
            _ => return None,
        };
        halves.push((half, *place));
    }
    Some(halves)
}
