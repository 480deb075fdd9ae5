//! Short calls among ranks that share memory: every message is eager, so a step is a copy into one slot and a look at another.
//!
//! What each step sends and receives is found once for all calls that are alike.

use std::ops::Range;

use unisono_collectives::{Chunks, Combine, Phase, Rank, Step, partition};

use super::format::Format;
use super::{Prepared, error_at};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::means::Means;
use crate::reduce::{self, ReduceOp};
use crate::transport::{EAGER_BYTES, Failure, Header, Incoming, Outgoing, Patience, Transport};

/// The steps of one rank in all calls that are alike, in bytes of the caller's buffer.
#[derive(Debug)]
pub(crate) struct EagerSteps {
    steps: Vec<EagerStep>,
    format: Format,
    /// The sums of which means are made in the end.
    sums: Option<(DType, Range<usize>)>,
    ranks: usize,
    algorithm: &'static str,
}

/// What is sent is copied before anything is received, so the two may overlap.
#[derive(Debug)]
struct EagerStep {
    /// The phase: its name and its number.
    phase: (&'static str, usize),
    /// The number of the step in its phase.
    number: usize,
    send: Option<(Rank, Range<usize>)>,
    receive: Option<(Rank, Range<usize>, Combine)>,
}

impl EagerSteps {
    /// The steps of a call, where they can be carried out so.
    pub(crate) fn new(
        prepared: &Prepared,
        call: &Call,
        means: Means,
        ranks: usize,
        transport: &Transport,
    ) -> Option<Self> {
        let format = Format::of(call.dtype, call.op);
        let in_one_pass = prepared.direct.is_some() && call.op.is_some();
        let in_buffer = format.widening.is_none() && !prepared.sends_original;
        let has_vendor = !matches!(means, Means::Algorithm(_));
        let is_eager = call.size_bytes() <= EAGER_BYTES && transport.is_shared_by(ranks);
        if in_one_pass || !in_buffer || has_vendor || !is_eager {
            return None;
        }
        let rank = transport.rank();
        let elements = |chunks: Chunks| partition::elements(call.count, prepared.chunk_count, chunks);
        let bytes = |chunks| call.bytes_of(elements(chunks));
        let step = |of_phase: usize, phase: &Phase, number, step: &Step| EagerStep {
            phase: (phase.name, of_phase),
            number,
            send: step.send.map(|send| (phase.group.member(send.to), bytes(send.chunks))),
            receive: step
                .receive
                .map(|receive| (phase.group.member(receive.from), bytes(receive.chunks), receive.combine)),
        };
        let phases = prepared.plan.phases().iter().enumerate();
        let steps: Vec<_> = phases
            .flat_map(|(of_phase, phase)| {
                let steps = phase.schedule.steps().iter().enumerate();
                steps.map(move |(number, of_plan)| step(of_phase, phase, number, of_plan))
            })
            .collect();
        let result = || call.bytes_of(call.result_on(rank, ranks));
        let sums = (call.op == Some(ReduceOp::Mean)).then(|| (call.dtype, result()));
        let meets_itself = steps.iter().any(|step| step.send.as_ref().is_some_and(|(to, _)| *to == rank));
        (!meets_itself).then_some(Self { steps, format, sums, ranks, algorithm: means.name() })
    }

    /// Carries out a call of this kind.
    ///
    /// To send before it receives holds up no rank: a slot is free once its last message was taken, which was in an earlier step of
    /// the receiver's.
    #[inline]
    pub(crate) fn run(
        &self,
        header: &Header,
        buffer: &mut [u8],
        transport: &mut Transport,
        patience: &Patience,
    ) -> Result<()> {
        for step in &self.steps {
            if step.phase.1 + step.number > 0 {
                transport.roll().at_step(step.phase.1, step.number);
            }
            self.exchange(step, header, buffer, transport, patience).map_err(|failure| {
                error_at(failure, (header, self.algorithm), transport, step.phase.0, step.number)
            })?;
        }
        if let Some((dtype, sums)) = &self.sums {
            reduce::divide(*dtype, &mut buffer[sums.clone()], self.ranks);
        }
        Ok(())
    }

    #[inline]
    fn exchange(
        &self,
        EagerStep { send, receive, .. }: &EagerStep,
        header: &Header,
        buffer: &mut [u8],
        transport: &mut Transport,
        patience: &Patience,
    ) -> Result<(), Failure> {
        if let Some((to, bytes)) = send {
            let outgoing = Outgoing { to: *to, bytes: &buffer[bytes.clone()] };
            transport.exchange(header, Some(outgoing), None, patience)?;
        }
        if let Some((from, bytes, combine)) = receive {
            let target = self.format.target(&mut buffer[bytes.clone()], *combine);
            transport.exchange(header, None, Some(Incoming { from: *from, target }), patience)?;
        }
        Ok(())
    }
}
