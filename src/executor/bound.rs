//! Programs bound to a kind of call: parts become ranges of elements, and the instructions between two barriers become a pass.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::partition::{self, Partition};
use unisono_collectives::program::{self, Instruction, Part, Place, Program};
use unisono_collectives::{Chunks, Combine, Rank, Source};

use super::capabilities::capabilities;
use super::format::Format;
use crate::call::Call;
use crate::kernels::ReduceOp;
use crate::method::{Method, Vendor};
use crate::transport::Fabric;

mod pass;

pub(super) use pass::{Move, Pass};

/// A program for one kind of call on one rank.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(super) call: Call,
    pub(super) rank: Rank,
    pub(super) ranks: usize,
    pub(super) format: Format,
    /// The elements that hold results on this rank after the call.
    pub(super) result: Range<usize>,
    /// The elements of each chunk, and of each chunk of the input.
    pub(super) partition: Partition,
    input: Partition,
    pub(super) blocks: usize,
    pub(super) rounds: usize,
    pub(super) ops: Vec<(Place, Op)>,
    /// Whether the program only sends and receives, in one round, without conversions.
    pub(super) is_short: bool,
    pub(super) has_passes: bool,
    pub(super) reads_original: bool,
    /// Whether a vendor carries out phases of some ranks. Ranks without such a phase take part in the agreement too.
    pub(super) by_vendor: bool,
    pub(super) compiled: Arc<CompiledPlan>,
}

/// An instruction, or a conversion of elements. The instructions of short calls are not boxed, for speed.
#[derive(Debug)]
pub(super) enum Op {
    Send(Send),
    Receive(Receive),
    Exchange(Box<Halves>),
    Post(Box<Halves>),
    Complete,
    Pass(Box<Pass>),
    /// A vendor's collective in place of this phase of the plan.
    Vendor(usize),
    /// Widens the elements of this block, before the first other operation on it.
    Widen(usize),
    /// Divides and rounds the elements of this block, after the last other operation on it.
    Finish(usize),
}

pub(super) type Halves = (Option<Send>, Option<Receive>);

#[derive(Debug)]
pub(super) struct Send {
    pub(super) to: Rank,
    pub(super) piece: Piece,
    pub(super) source: Source,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) from: Rank,
    pub(super) piece: Piece,
    pub(super) combine: Combine,
}

/// A block of a range of elements.
#[derive(Debug)]
pub(super) struct Piece {
    /// The elements of all blocks.
    pub(super) all: Range<usize>,
    /// The block in the first round.
    pub(super) block: usize,
}

impl Bound {
    /// Returns the program of a compiled plan for a call by a method, over a transport. `parts` are the parts of ranks, if they are given.
    pub(crate) fn compile(
        compiled: &Arc<CompiledPlan>,
        call: &Call,
        method: Method,
        parts: Option<&Partition>,
        transport: &Fabric,
    ) -> Self {
        let capabilities = capabilities(transport, compiled.ranks(), call, method);
        // Blocks suit the largest part: a rank that lends a copy of its array reserves as many bytes for each rank.
        let count = parts.map_or(call.count, |parts| parts.largest() * parts.chunk_count());
        let program = compiled.program(count, call.element_bytes(), &capabilities);
        let parts = call.parts(program.chunk_count, parts);
        Self::bind(&program, compiled, call, method, (&parts, &parts))
            .expect("the executor supports every program of a plan")
    }

    /// Returns the program of an all-to-all from one array to another one, with these parts.
    pub(crate) fn between(
        compiled: &Arc<CompiledPlan>,
        call: &Call,
        method: Method,
        (sent, received): (&Partition, &Partition),
    ) -> Self {
        // Ranks do not know each other's sizes, so the program must not depend on them.
        let program = compiled.program(0, 1, &Capabilities::default());
        Self::bind(&program, compiled, call, method, (received, sent))
            .expect("an all-to-all sends the parts of its input")
    }

    /// Binds a program to a call whose buffer and input have chunks of these elements.
    pub(crate) fn bind(
        program: &Program,
        compiled: &Arc<CompiledPlan>,
        call: &Call,
        method: Method,
        (partition, input): (&Partition, &Partition),
    ) -> Result<Self, &'static str> {
        if [partition, input].iter().any(|partition| partition.chunk_count() != program.chunk_count) {
            return Err("the number of parts differs from the chunks of the program");
        }
        let (rank, ranks) = (compiled.rank(), compiled.ranks());
        // A vendor's collectives add elements in the wider format, without rounding.
        let by_vendor = method.in_nodes() == Some(Vendor::Mpi);
        let format = Format::of(call, by_vendor || call.op.is_some() && compiled.accumulates());
        let mut bound = Self {
            call: *call,
            rank,
            ranks,
            format,
            result: call.result_on(rank, partition),
            partition: partition.clone(),
            input: input.clone(),
            blocks: program.blocks,
            rounds: program.rounds,
            ops: Vec::with_capacity(program.instructions.len()),
            is_short: false,
            has_passes: false,
            reads_original: program.reads_original(),
            by_vendor,
            compiled: Arc::clone(compiled),
        };
        let mut rest = program.instructions.as_slice();
        while let Some(&(place, instruction)) = rest.first() {
            let op = bound.next(instruction, &mut rest)?;
            bound.ops.push((place, op));
        }
        let blocks = bound.blocks_of_ops()?;
        if !bound.has_passes && (format.accumulator.is_some() || call.op == Some(ReduceOp::Mean)) {
            bound.widen_and_finish(&blocks);
        }
        let is_short = |op: &Op| matches!(op, Op::Send(_) | Op::Receive(_));
        bound.is_short = bound.blocks == 1
            && !by_vendor
            && !bound.reads_original
            && bound.ops.iter().all(|(_, op)| is_short(op));
        Ok(bound)
    }

    /// Binds the first instruction of `rest` and those that belong to it, and removes them from `rest`.
    fn next(
        &mut self,
        instruction: Instruction,
        rest: &mut &[(Place, Instruction)],
    ) -> Result<Op, &'static str> {
        let all = std::mem::replace(rest, &rest[1..]);
        Ok(match instruction {
            Instruction::Lend { .. } | Instruction::Sync => {
                self.has_passes = true;
                *rest = all;
                Op::Pass(Box::new(Pass::next(self, rest)?))
            }
            Instruction::Read { .. } | Instruction::Write { .. } | Instruction::Swap { .. } => {
                return Err("an access to memory outside a pass");
            }
            Instruction::Vendor { phase, steps } => {
                *rest = rest.get(steps..).ok_or("a vendor replaces more steps than there are")?;
                Op::Vendor(phase)
            }
            Instruction::Send(send) => Op::Send(self.send(send)),
            Instruction::Exchange(None, Some(receive)) => Op::Receive(self.receive(receive)?),
            Instruction::Exchange(send, receive) => Op::Exchange(Box::new(self.halves(send, receive)?)),
            Instruction::Post(send, receive) => Op::Post(Box::new(self.halves(send, receive)?)),
            Instruction::Complete => Op::Complete,
        })
    }

    fn halves(
        &mut self,
        send: Option<program::Outgoing>,
        receive: Option<program::Incoming>,
    ) -> Result<Halves, &'static str> {
        let receive = receive.map(|receive| self.receive(receive)).transpose()?;
        Ok((send.map(|send| self.send(send)), receive))
    }

    fn send(&mut self, program::Outgoing { to, part, source }: program::Outgoing) -> Send {
        Send { to, piece: self.piece_of(source, part), source }
    }

    fn receive(
        &self,
        program::Incoming { from, part, combine }: program::Incoming,
    ) -> Result<Receive, &'static str> {
        if combine.reduces() && self.call.op.is_none() {
            return Err("a call without a reduction reduces");
        }
        Ok(Receive { from, piece: self.piece_of(Source::Current, part), combine })
    }

    fn piece_of(&self, source: Source, Part { chunks, block }: Part) -> Piece {
        let partition = match source {
            Source::Current => &self.partition,
            Source::Original => &self.input,
        };
        Piece { all: partition.elements(chunks), block }
    }

    /// Returns the block that each operation works on in the first round.
    fn blocks_of_ops(&self) -> Result<Vec<usize>, &'static str> {
        let mut posted = VecDeque::new();
        let block_of = |halves: &Halves| match halves {
            (Some(Send { piece, .. }), _) | (None, Some(Receive { piece, .. })) => piece.block,
            (None, None) => 0,
        };
        let block = |(_, op): &(Place, Op)| match op {
            Op::Send(Send { piece, .. }) | Op::Receive(Receive { piece, .. }) => Ok(piece.block),
            Op::Exchange(halves) => Ok(block_of(halves)),
            Op::Post(halves) => {
                posted.push_back(block_of(halves));
                Ok(block_of(halves))
            }
            Op::Complete => posted.pop_front().ok_or("a completion without a posted exchange"),
            // Conversions are inserted afterwards.
            Op::Pass(_) | Op::Vendor(_) | Op::Widen(_) | Op::Finish(_) => Ok(0),
        };
        self.ops.iter().map(block).collect()
    }

    /// Inserts `Widen` before the first operation on each block of a round, and `Finish` after the last one. `blocks` are the blocks of the
    /// operations.
    fn widen_and_finish(&mut self, blocks: &[usize]) {
        let last: HashMap<_, _> = blocks.iter().enumerate().map(|(at, &block)| (block, at)).collect();
        let mut begun = HashSet::new();
        let ops = std::mem::take(&mut self.ops).into_iter().zip(blocks).enumerate();
        for (at, ((place, op), &block)) in ops {
            if begun.insert(block) {
                self.ops.push((place, Op::Widen(block)));
            }
            self.ops.push((place, op));
            if last[&block] == at {
                self.ops.push((place, Op::Finish(block)));
            }
        }
    }

    /// Returns the number of operations, which determines the memory that it takes.
    pub(crate) fn operations(&self) -> usize {
        self.ops.len()
    }

    pub(super) fn blocks_of_round(&self) -> usize {
        self.blocks / self.rounds
    }

    #[inline]
    pub(super) fn elements(&self, piece: &Piece, round: usize) -> Range<usize> {
        self.elements_of_blocks(&piece.all, piece.block..piece.block + 1, round)
    }

    /// Returns the elements of some blocks of a range, which are numbered from the first one of the round.
    #[inline]
    pub(super) fn elements_of_blocks(
        &self,
        all: &Range<usize>,
        blocks: Range<usize>,
        round: usize,
    ) -> Range<usize> {
        if self.blocks == 1 {
            return all.clone();
        }
        let before = round * self.blocks_of_round();
        let blocks = Chunks::new(before + blocks.start, before + blocks.end);
        let part = partition::elements(all.len(), self.blocks, blocks);
        all.start + part.start..all.start + part.end
    }
}
