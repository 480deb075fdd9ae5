//! The executor: runs a plan on a buffer, over a transport.
//!
//! For every step it finds the elements of the step's chunks, keeps outgoing bytes unchanged while they are in transit, and
//! passes both halves to the transport. How a plan is carried out is decided elsewhere, by an [`Execution`], which the executor
//! interprets.

use std::ops::Range;
use std::sync::Arc;

use unisono_collectives::execution::{CompiledPlan, Execution};
use unisono_collectives::{Chunks, Phase, Rank, Receive, Schedule, Send, Source, Step, Topology, partition};

use crate::call::{Call, scaled};
use crate::error::{Error, Place, Result};
use crate::memory::{Registry, Scratch};
use crate::method::Method;
use crate::transport::{Deadlines, Failure, Header, Incoming, Outgoing, Transport};

mod agreement;
mod capabilities;
mod copies;
mod eager;
mod format;
mod lanes;
mod one_pass;
mod vendor;

pub(crate) use agreement::agreement;
pub(crate) use capabilities::capabilities;
use copies::Copies;
pub(crate) use eager::EagerSteps;
use format::Format;
use one_pass::OnePass;

/// One collective call on one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) call: &'a Call,
    /// The call as all ranks make it, for their message headers; `call` may be a part of it.
    pub(crate) header: Header,
    pub(crate) method: Method,
    pub(crate) compiled: &'a CompiledPlan,
    /// How this rank carries it out.
    pub(crate) execution: &'a Execution,
    pub(crate) topology: &'a Topology,
    #[cfg_attr(
        not(any(feature = "mpi", feature = "nccl")),
        allow(dead_code, reason = "there are no vendors")
    )]
    /// The schedule by which all ranks verify that they make the same call; its chunks are not used.
    pub(crate) agreement: &'a Schedule,
    /// How long a step may wait for another rank.
    pub(crate) deadlines: &'a Deadlines,
}

impl Task<'_> {
    /// The error of a failure at this step.
    #[cold]
    fn error(&self, failure: Failure, transport: &Transport, phase: &'static str, step: usize) -> Error {
        error_at(failure, (&self.header, self.method.name()), transport, phase, step)
    }

    /// The elements of a range of chunks that belong to one of `blocks` blocks.
    fn elements_of_block(&self, chunks: Chunks, block: usize, blocks: usize) -> Range<usize> {
        let all = partition::elements(self.call.count, self.compiled.plan().chunk_count(), chunks);
        if blocks == 1 {
            return all;
        }
        let part = partition::elements(all.len(), blocks, Chunks::one(block));
        all.start + part.start..all.start + part.end
    }
}

/// The error of a failure at this step, with what is known of a rank that did not arrive.
fn error_at(
    failure: Failure,
    (header, algorithm): (&Header, &'static str),
    transport: &Transport,
    phase: &'static str,
    step: usize,
) -> Error {
    let (operation, sequence, status) = (header.operation(), header.sequence(), transport.status());
    failure.at(Place { rank: status.rank(), operation, sequence, algorithm, phase, step }, status)
}

/// Carries out tasks. It keeps its buffers between tasks.
#[derive(Debug)]
pub(crate) struct Executor {
    /// The format of the last call, since most calls repeat the one before.
    format: Option<Format>,
    widened: Scratch,
    original: Scratch,
    outgoing: Scratch,
}

impl Executor {
    /// An executor whose staging memory comes from this registry.
    pub(crate) fn new(registry: &Arc<Registry>) -> Self {
        let registered = || Scratch::new(Arc::clone(registry));
        Self { format: None, widened: Scratch::default(), original: registered(), outgoing: registered() }
    }

    /// Carries out a task on this rank's buffer.
    pub(crate) fn run(
        &mut self,
        task: &Task<'_>,
        buffer: &mut [u8],
        transport: &mut Transport,
    ) -> Result<()> {
        let Call { op, count, .. } = *task.call;
        // What a vendor's collectives add, they do not round.
        let by_vendor = matches!(task.execution, Execution::Messages { by_vendor: true, .. });
        let format = self.format(task.call, by_vendor || task.compiled.accumulates());
        let Self { widened, original, outgoing, .. } = self;
        match task.execution {
            Execution::SinglePass { direct, blocks } => {
                let op = op.expect("a direct all-reduce reduces");
                OnePass { task, direct, blocks: *blocks, op, accumulator: format.accumulator }
                    .run(buffer, widened, transport)
            }
            Execution::Moves(moves) => Copies { task, moves }.run(buffer, transport),
            Execution::Eager(steps) => {
                let ranks = (transport.rank(), task.topology.ranks());
                let plan = task.compiled.plan();
                EagerSteps::new(steps, plan, task.call, task.method, ranks).run(
                    &task.header,
                    buffer,
                    transport,
                    task.deadlines,
                )
            }
            Execution::Messages { .. } | Execution::Lanes(_) => {
                let original =
                    if task.compiled.sends_original() { original.copy_of(buffer)? } else { &mut [] };
                let (held, narrow) = match format.accumulator {
                    Some(_) => (widened.reserve(count * format.held_size_bytes)?, buffer),
                    None => (buffer, &mut [][..]),
                };
                let result = task.call.result_on(transport.rank(), task.topology.ranks());
                let (header, blocks) = (task.header, task.execution.blocks());
                Run { task, format, header, original, outgoing, narrow, result, block: 0, blocks }
                    .all_steps(held, transport)
            }
        }
    }

    fn format(&mut self, call: &Call, accumulates: bool) -> Format {
        match self.format {
            Some(format) if format.is_of(call, accumulates) => format,
            _ => *self.format.insert(Format::of(call, accumulates)),
        }
    }
}

/// A task in progress. `held`, below, is the buffer that steps work on: the user's, or an accumulator of wider elements.
struct Run<'a> {
    task: &'a Task<'a>,
    format: Format,
    header: Header,
    /// The input in wire format, if a step sends it.
    original: &'a [u8],
    /// Staging for data that would change while in transit.
    outgoing: &'a mut Scratch,
    /// The user's buffer, if elements are accumulated in a wider format.
    narrow: &'a mut [u8],
    /// The elements that hold results on this rank when the task is done.
    result: Range<usize>,
    /// The index of the block in progress, out of `blocks`.
    block: usize,
    blocks: usize,
}

impl Run<'_> {
    fn all_steps(&mut self, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        match self.task.execution {
            Execution::Lanes(timetable) => self.in_lanes(timetable, held, transport),
            Execution::Messages { by_vendor: true, .. } => {
                self.task.agree(transport)?;
                self.in_blocks(held, transport)
            }
            _ => self.in_blocks(held, transport),
        }
    }

    /// Runs all steps of one block, then those of the next.
    fn in_blocks(&mut self, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Task { compiled, .. } = *self.task;
        for block in 0..self.blocks {
            self.block = block;
            self.take_up_block(held);
            for (of_phase, phase) in compiled.plan().phases().iter().enumerate() {
                if let Some(call) = self.left_to_vendor(phase) {
                    transport.status().at_step(of_phase, 0);
                    self.by_vendor(phase, call, held, transport)
                        .map_err(|failure| self.task.error(failure, transport, phase.name, 0))?;
                    continue;
                }
                for (number, step) in phase.schedule.steps().iter().enumerate() {
                    if block + of_phase + number > 0 {
                        transport.status().at_step(of_phase, number);
                    }
                    self.step(phase, step, held, transport)
                        .map_err(|failure| self.task.error(failure, transport, phase.name, number))?;
                }
            }
            self.hand_over_block(held);
        }
        Ok(())
    }

    fn step(
        &mut self,
        phase: &Phase,
        step: &Step,
        held: &mut [u8],
        transport: &mut Transport,
    ) -> Result<(), Failure> {
        let (format, header, deadlines) = (self.format, self.header, self.task.deadlines);
        let receives = step.receive.map(|receive| self.held_range(receive.chunks));
        let mut send = step.send;
        if let Some((to, sends)) = self.sent_ahead(phase, step, transport) {
            let outgoing = Outgoing { to, bytes: &held[sends] };
            transport.exchange(&header, Some(outgoing), None, deadlines)?;
            send = None;
        }
        let (bytes, held) = match &send {
            Some(send) => self.compile(send, held, receives).map_err(Failure::Error)?,
            None => (&[][..], receives.map_or(&mut [][..], |range| &mut held[range])),
        };
        let outgoing = send.map(|send| Outgoing { to: phase.group.member(send.to), bytes });
        let mut incoming = step.receive.map(|Receive { from, combine, .. }| Incoming {
            from: phase.group.member(from),
            target: format.target(held, combine),
        });

        // A step of a rank with itself needs no transport.
        if let (Some(to_self), Some(from_self)) = (&outgoing, &mut incoming)
            && to_self.to == transport.rank()
            && from_self.from == transport.rank()
        {
            from_self.target.accept(0, to_self.bytes);
            return Ok(());
        }
        transport.exchange(&header, outgoing, incoming, deadlines)
    }

    /// The rank and range that a step can send before it receives, so that data can be reduced into what was sent: possible
    /// where the transport copies a message anyway and the send is eager.
    fn sent_ahead(&self, phase: &Phase, step: &Step, transport: &Transport) -> Option<(Rank, Range<usize>)> {
        let (send, receive) = (step.send?, step.receive?);
        let in_place = send.source == Source::Current && self.format.accumulator.is_none();
        let (to, sends) = (phase.group.member(send.to), self.held_range(send.chunks));
        let ahead =
            in_place && send.chunks.overlaps(receive.chunks) && transport.takes_a_copy(to, sends.len());
        ahead.then_some((to, sends))
    }

    /// The bytes to send and the part of the buffer to receive into, disjoint.
    fn compile<'b>(
        &'b mut self,
        send: &Send,
        held: &'b mut [u8],
        receives: Option<Range<usize>>,
    ) -> Result<(&'b [u8], &'b mut [u8])> {
        let sends = self.held_range(send.chunks);
        let received = receives.unwrap_or(0..0);
        if send.source == Source::Original {
            let bytes = scaled(self.elements(send.chunks), self.format.wire_size_bytes);
            return Ok((&self.original[bytes], &mut held[received]));
        }
        if let Some(accumulator) = self.format.accumulator {
            let size_bytes = sends.len() / self.format.held_size_bytes * self.format.wire_size_bytes;
            let rounded = self.outgoing.reserve(size_bytes)?;
            (accumulator.round)(&mut held[sends], rounded);
            return Ok((rounded, &mut held[received]));
        }
        Ok(if sends.end <= received.start {
            let (before, after) = held.split_at_mut(received.start);
            (&before[sends], &mut after[..received.len()])
        } else if received.end <= sends.start {
            let (before, after) = held.split_at_mut(sends.start);
            (&after[..sends.len()], &mut before[received])
        } else {
            // The incoming data is reduced into the data being sent.
            (self.outgoing.copy_of(&held[sends])?, &mut held[received])
        })
    }

    /// The byte range of a range of chunks in the held format, limited to this block.
    fn held_range(&self, chunks: Chunks) -> Range<usize> {
        scaled(self.elements(chunks), self.format.held_size_bytes)
    }

    fn elements(&self, chunks: Chunks) -> Range<usize> {
        self.task.elements_of_block(chunks, self.block, self.blocks)
    }
}
