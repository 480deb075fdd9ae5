//! The one loop: a plan, over a transport, on a buffer.
//!
//! Here, and only here, steps meet bytes. For every step the executor finds the elements that its chunks
//! name, sees to it that what is sent does not change while it is on its way, and hands both halves to the
//! transport.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use unisono_collectives::{
    Algorithm, Chunks, Direct, Operation, Phase, Plan, Rank, Receive, Schedule, Send, Source, Step, Topology,
    moves_directly, partition,
};

use crate::call::{Call, scaled};
use crate::dtype::DType;
use crate::error::{Error, Place, Result};
use crate::kernels::ReduceOp;
use crate::memory::{Registry, Scratch};
use crate::method::Method;
#[cfg(feature = "mpi")]
use crate::method::Vendor;
use crate::transport::{Deadlines, EAGER_BYTES, Failure, Header, Incoming, Outgoing, Transport};

mod agreement;
#[cfg(feature = "mpi")]
mod by_mpi;
mod copies;
mod eager;
mod format;
#[cfg(feature = "mpi")]
mod lanes;
mod one_pass;

pub(crate) use agreement::agreement;
use copies::Copies;
pub(crate) use eager::EagerSteps;
use format::Format;
use one_pass::OnePass;

/// How much of a chunk is sent at a time between ranks that share memory: a few of it fit a core's cache.
const BLOCK_BYTES: usize = 512 << 10;

/// A plan, and what the executor needs to know of it.
#[derive(Debug)]
pub(crate) struct CompiledPlan {
    plan: Plan,
    algorithm: Algorithm,
    /// Set where ranks that reach each other's buffers can do it all in one pass.
    direct: Option<Direct>,
    /// Whether it only moves elements, each from the rank that has it to those that are to have it, once it was asked.
    only_moves: OnceLock<bool>,
    /// Whether a step sends what the buffer held before the first step.
    sends_original: bool,
    chunk_count: usize,
    /// Whether each message of every rank is a single chunk, once it was asked.
    single_chunks: OnceLock<bool>,
    #[cfg(feature = "mpi")]
    /// How many steps there are between nodes, if it can be run in lanes, once it was asked.
    far_steps: OnceLock<Option<usize>>,
}

impl CompiledPlan {
    pub(crate) fn new(
        plan: Plan,
        algorithm: Algorithm,
        operation: Operation,
        rank: usize,
        ranks: usize,
    ) -> Self {
        let all_reduce = operation == Operation::AllReduce;
        let direct = all_reduce.then(|| Direct::recognise(&plan.flattened(), rank, ranks)).flatten();
        let steps = || plan.phases().iter().flat_map(|phase| phase.schedule.steps());
        let mut sends = steps().filter_map(|step| step.send);
        let sends_original = sends.any(|send| send.source == Source::Original);
        Self {
            chunk_count: plan.chunk_count(),
            plan,
            algorithm,
            direct,
            only_moves: OnceLock::new(),
            sends_original,
            single_chunks: OnceLock::new(),
            #[cfg(feature = "mpi")]
            far_steps: OnceLock::new(),
        }
    }

    /// A part of an algorithm's plan, for which no rank knows the others' parts.
    #[cfg(feature = "nccl")]
    pub(crate) fn part(plan: Plan, algorithm: Algorithm) -> Self {
        Self {
            single_chunks: OnceLock::from(false),
            #[cfg(feature = "mpi")]
            far_steps: OnceLock::from(None),
            chunk_count: plan.chunk_count(),
            plan,
            algorithm,
            direct: None,
            only_moves: OnceLock::from(false),
            sends_original: false,
        }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// In how many blocks the plan is best run, one block after the other, where ranks share memory: so many that
    /// what a block brings is still in a core's cache when a later step needs it again.
    ///
    /// A block is a part of each chunk, so an element stays in its chunk, and the bits stay what they are.
    fn blocks(&self, task: &Task<'_>) -> usize {
        let chunk_bytes = task.call.size_bytes() / self.chunk_count;
        let blocks = chunk_bytes.div_ceil(BLOCK_BYTES);
        if blocks > 1 && self.all_send_single_chunks(task) { blocks } else { 1 }
    }

    /// Whether ranks that reach each other's buffers can move all elements themselves, without messages.
    fn only_moves(&self, Task { call, topology, .. }: &Task<'_>) -> bool {
        *self.only_moves.get_or_init(|| moves_directly(self.algorithm, call.operation, topology))
    }

    /// Asked of the plans of all ranks, since all must come to the same number of blocks.
    fn all_send_single_chunks(&self, Task { call, topology, .. }: &Task<'_>) -> bool {
        let plan = |rank| self.algorithm.plan(call.operation, topology, rank);
        let all = || (0..topology.ranks()).filter_map(plan).all(|plan| sends_single_chunks(&plan));
        *self.single_chunks.get_or_init(all)
    }
}

fn sends_single_chunks(plan: &Plan) -> bool {
    let mut sends =
        plan.phases().iter().flat_map(|phase| phase.schedule.steps()).filter_map(|step| step.send);
    sends.all(|send| send.chunks.count() == 1)
}

/// One collective to be carried out by one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) call: &'a Call,
    /// What ranks tell each other of it: the call as all make it, of which `call` may be a part.
    pub(crate) header: Header,
    pub(crate) method: Method,
    pub(crate) compiled: &'a CompiledPlan,
    pub(crate) topology: &'a Topology,
    #[cfg_attr(
        not(any(feature = "mpi", feature = "nccl")),
        allow(dead_code, reason = "there are no vendors")
    )]
    /// A way for all ranks to see that they are in the same call, in chunks that nobody needs.
    pub(crate) agreement: &'a Schedule,
    /// How long a step may wait for another rank.
    pub(crate) deadlines: &'a Deadlines,
}

impl Task<'_> {
    /// What went wrong, with the step where it did.
    #[cold]
    fn error(&self, failure: Failure, transport: &Transport, phase: &'static str, step: usize) -> Error {
        error_at(failure, (&self.header, self.method.name()), transport, phase, step)
    }

    /// The elements of a range of chunks, as far as they are in one of `blocks` blocks.
    fn elements_of_block(&self, chunks: Chunks, block: usize, blocks: usize) -> Range<usize> {
        let all = partition::elements(self.call.count, self.compiled.chunk_count, chunks);
        if blocks == 1 {
            return all;
        }
        let part = partition::elements(all.len(), blocks, Chunks::one(block));
        all.start + part.start..all.start + part.end
    }
}

/// What went wrong in a call, with the step where it did and what is known of a rank that did not come.
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

/// Carries out tasks. It keeps its memory, so that the next task does not pay for it.
#[derive(Debug)]
pub(crate) struct Executor {
    /// The last call's type and reduction, and how such elements are held: most calls are like the one before.
    format: Option<((DType, Option<ReduceOp>), Format)>,
    widened: Scratch,
    original: Scratch,
    outgoing: Scratch,
}

impl Executor {
    /// An executor whose messages lie in this registered memory, if not in the user's buffer.
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
        let Call { op, dtype, count, .. } = *task.call;
        let format = self.format(dtype, op);
        let Self { widened, original, outgoing, .. } = self;
        if let (Some(direct), Some(op)) = (&task.compiled.direct, op)
            && transport.is_shared_by(task.topology.ranks())
        {
            return OnePass { task, direct, op, accumulator: format.accumulator }
                .run(buffer, widened, transport);
        }
        // A shorter message is copied anyway, and a single pass would have ranks wait for each other twice.
        if op.is_none()
            && transport.is_shared_by(task.topology.ranks())
            && task.call.size_bytes() / task.compiled.chunk_count > EAGER_BYTES
            && task.compiled.only_moves(task)
        {
            return Copies { task }.run(buffer, transport);
        }
        let original = if task.compiled.sends_original { original.copy_of(buffer) } else { &mut [] };
        let (held, narrow) = match format.accumulator {
            Some(_) => (widened.take(count * format.held_size_bytes), buffer),
            None => (buffer, &mut [][..]),
        };
        let result = task.call.result_on(transport.rank(), task.topology.ranks());
        let header = task.header;
        Run { task, format, header, original, outgoing, narrow, result, block: 0, blocks: 1 }
            .all_steps(held, transport)
    }

    fn format(&mut self, dtype: DType, op: Option<ReduceOp>) -> Format {
        match self.format {
            Some((of, format)) if of == (dtype, op) => format,
            _ => self.format.insert(((dtype, op), Format::of(dtype, op))).1,
        }
    }
}

/// A task in progress. `held`, below, is what its steps work on: the user's buffer, or its elements widened.
struct Run<'a> {
    task: &'a Task<'a>,
    format: Format,
    header: Header,
    /// The input as it travels, if a step sends it.
    original: &'a [u8],
    /// Room for what would change while it is on its way.
    outgoing: &'a mut Scratch,
    /// The user's buffer, where elements are held in a wider format.
    narrow: &'a mut [u8],
    /// The elements that are a result on this rank when the task is done.
    result: Range<usize>,
    /// Which part of each chunk is worked on, of how many.
    block: usize,
    blocks: usize,
}

impl Run<'_> {
    fn all_steps(&mut self, held: &mut [u8], transport: &mut Transport) -> Result<()> {
        let Task { compiled, topology, .. } = *self.task;
        let vendor = self.task.method.in_nodes();
        #[cfg(feature = "mpi")]
        if vendor == Some(Vendor::Mpi) {
            self.task.agree(transport)?;
        }
        #[cfg(feature = "mpi")]
        if transport.has_lanes(topology.ranks())
            && let Some(lanes) = compiled.lanes(self.task)
        {
            return self.in_lanes(lanes, held, transport);
        }
        let in_blocks = vendor.is_none() && transport.is_shared_by(topology.ranks());
        self.blocks = if in_blocks { compiled.blocks(self.task) } else { 1 };
        for block in 0..self.blocks {
            self.block = block;
            self.take_up_block(held);
            for (of_phase, phase) in compiled.plan.phases().iter().enumerate() {
                #[cfg(feature = "mpi")]
                if let (Some(call), Some(Vendor::Mpi)) = (&phase.vendor, vendor) {
                    transport.status().at_step(of_phase, 0);
                    self.by_mpi(phase, call, held, transport)
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
            Some(send) => self.compile(send, held, receives),
            None => (&[][..], receives.map_or(&mut [][..], |range| &mut held[range])),
        };
        let outgoing = send.map(|send| Outgoing { to: phase.group.member(send.to), bytes });
        let mut incoming = step.receive.map(|Receive { from, combine, .. }| Incoming {
            from: phase.group.member(from),
            target: format.target(held, combine),
        });

        // A step in which a rank meets itself needs no transport.
        if let (Some(to_self), Some(from_self)) = (&outgoing, &mut incoming)
            && to_self.to == transport.rank()
            && from_self.from == transport.rank()
        {
            from_self.target.accept(0, to_self.bytes);
            return Ok(());
        }
        transport.exchange(&header, outgoing, incoming, deadlines)
    }

    /// To whom a step can send what before it receives, so that what arrives may be reduced into what was sent: where
    /// the transport copies a message anyway, and the sender does not wait.
    fn sent_ahead(&self, phase: &Phase, step: &Step, transport: &Transport) -> Option<(Rank, Range<usize>)> {
        let (send, receive) = (step.send?, step.receive?);
        let in_place = send.source == Source::Current && self.format.accumulator.is_none();
        let (to, sends) = (phase.group.member(send.to), self.held_range(send.chunks));
        let ahead =
            in_place && send.chunks.overlaps(receive.chunks) && transport.takes_a_copy(to, sends.len());
        ahead.then_some((to, sends))
    }

    /// The bytes to send, and the part of the buffer that is received into, such that neither touches the
    /// other.
    fn compile<'b>(
        &'b mut self,
        send: &Send,
        held: &'b mut [u8],
        receives: Option<Range<usize>>,
    ) -> (&'b [u8], &'b mut [u8]) {
        let sends = self.held_range(send.chunks);
        let received = receives.unwrap_or(0..0);
        if send.source == Source::Original {
            let bytes = scaled(self.elements(send.chunks), self.format.wire_size_bytes);
            return (&self.original[bytes], &mut held[received]);
        }
        if let Some(accumulator) = self.format.accumulator {
            let size_bytes = sends.len() / self.format.held_size_bytes * self.format.wire_size_bytes;
            let rounded = self.outgoing.take(size_bytes);
            (accumulator.round)(&mut held[sends], rounded);
            return (rounded, &mut held[received]);
        }
        if sends.end <= received.start {
            let (before, after) = held.split_at_mut(received.start);
            (&before[sends], &mut after[..received.len()])
        } else if received.end <= sends.start {
            let (before, after) = held.split_at_mut(sends.start);
            (&after[..sends.len()], &mut before[received])
        } else {
            // What arrives is reduced into what is being sent.
            (self.outgoing.copy_of(&held[sends]), &mut held[received])
        }
    }

    /// The bytes of a range of chunks, as they are held: those of this block.
    fn held_range(&self, chunks: Chunks) -> Range<usize> {
        scaled(self.elements(chunks), self.format.held_size_bytes)
    }

    fn elements(&self, chunks: Chunks) -> Range<usize> {
        self.task.elements_of_block(chunks, self.block, self.blocks)
    }
}
