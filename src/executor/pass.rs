//! A pass over memory that all ranks access: a rank works on its own part of all buffers.

use std::ops::Range;

use unisono_collectives::program::{Instruction, Part, Place};
use unisono_collectives::{Chunks, Combine, Rank, partition};

use super::bound::Bound;
use super::run::Run;
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, Accumulator, ReduceOp};
use crate::memory::Scratch;
use crate::transport::{Failure, Open, Shares, Transport};

/// The number of bytes worked on at a time: this rank's block and another's fit the L1 cache together.
const BLOCK: usize = 8 << 10;

/// The instructions between two barriers, and what this rank lends to the others meanwhile.
#[derive(Debug)]
pub(super) struct Pass {
    /// The elements that each rank works on in this rank's buffer, in all rounds; this rank does so in all buffers.
    parts: Vec<Range<usize>>,
    /// The largest part of any rank in a round, in bytes, rounded up to whole cache lines: the same on all ranks.
    share_bytes: usize,
    /// Whether other ranks read this rank's buffer.
    read: bool,
    /// Whether other ranks write to it.
    written: bool,
    /// The ranks whose elements are reduced into this rank's, in order.
    reduced: Vec<Rank>,
    /// What follows.
    moves: Vec<Move>,
}

#[derive(Debug)]
enum Move {
    /// From another rank's buffer to this one's.
    Take { from: Rank },
    /// From this rank's buffer to another's.
    Give { to: Rank },
    /// Swaps one block of another rank's part of this buffer with the same block of this rank's part of the other.
    Swap { with: Rank, block: usize },
}

impl Pass {
    /// Binds the instructions of a pass, which it removes from `rest`.
    ///
    /// # Errors
    /// Why the pass cannot be run.
    pub(super) fn next(bound: &Bound, rest: &mut &[(Place, Instruction)]) -> Result<Self, &'static str> {
        let is_sync = |(_, instruction): &(Place, Instruction)| *instruction == Instruction::Sync;
        let begin = rest.iter().position(is_sync).ok_or("memory is lent to no pass")?;
        let (lends, inside) = (&rest[..begin], &rest[begin + 1..]);
        let end = inside.iter().position(is_sync).ok_or("a pass does not end")?;
        *rest = &inside[end + 1..];
        let block = bound.call.count.div_ceil(bound.chunk_count).div_ceil(bound.blocks);
        let share = bound.blocks_of_round() * block * bound.call.element_bytes();
        let mut pass = Self {
            parts: vec![0..0; bound.ranks],
            share_bytes: share.next_multiple_of(64),
            read: false,
            written: false,
            reduced: Vec::new(),
            moves: Vec::new(),
        };
        for (_, lend) in lends {
            let Instruction::Lend { to, part, read, written } = *lend else {
                return Err("something is done after memory was lent, and before the pass");
            };
            pass.part_of(to, part, bound)?;
            (pass.read, pass.written) = (pass.read | read, pass.written | written);
        }
        for (_, access) in &inside[..end] {
            match *access {
                Instruction::Read { of, theirs, own, combine } if theirs == own => {
                    pass.part_of(bound.rank, own, bound)?;
                    match combine {
                        Combine::Reduce if bound.call.op.is_none() => {
                            return Err("a call without a reduction reduces");
                        }
                        Combine::Reduce if pass.moves.is_empty() => pass.reduced.push(of),
                        Combine::Reduce => return Err("a pass reduces after it has moved"),
                        Combine::Replace => pass.moves.push(Move::Take { from: of }),
                    }
                }
                Instruction::Write { to, theirs, own } if theirs == own => {
                    pass.part_of(bound.rank, own, bound)?;
                    pass.moves.push(Move::Give { to });
                }
                Instruction::Swap { with, theirs, own }
                    if theirs.block == own.block && bound.blocks_of_round() == 2 =>
                {
                    pass.part_of(bound.rank, theirs, bound)?;
                    pass.part_of(with, own, bound)?;
                    pass.moves.push(Move::Swap { with, block: own.block });
                }
                _ => return Err("a pass does more than work on one part of all buffers"),
            }
        }
        Ok(pass)
    }

    /// Notes the chunk of a rank, of which it works on all blocks of a round.
    fn part_of(&mut self, rank: Rank, Part { chunks, .. }: Part, bound: &Bound) -> Result<(), &'static str> {
        if chunks.count() != 1 {
            return Err("a rank works on several chunks in a pass");
        }
        let all = partition::elements(bound.call.count, bound.chunk_count, chunks);
        let known = &mut self.parts[rank];
        if *known != (0..0) && *known != all {
            return Err("a rank works on two parts in a pass");
        }
        *known = all;
        Ok(())
    }

    /// The bytes of a rank in a round: all blocks of it.
    #[inline]
    fn bytes(&self, rank: Rank, bound: &Bound, round: usize) -> Range<usize> {
        let all = self.parts[rank].clone();
        if bound.rounds == 1 {
            return bound.call.bytes_of(all);
        }
        let blocks = round * bound.blocks_of_round()..(round + 1) * bound.blocks_of_round();
        let part = partition::elements(all.len(), bound.blocks, Chunks::new(blocks.start, blocks.end));
        bound.call.bytes_of(all.start + part.start..all.start + part.end)
    }
}

impl Run<'_> {
    pub(super) fn pass(&mut self, pass: &Pass, transport: &mut Transport) -> Result<(), Failure> {
        let Self { bound, task, held, work, round, .. } = self;
        let ranges = |rank| pass.bytes(rank, bound, *round);
        let shares = Shares { ranges, share_bytes: pass.share_bytes, read: pass.read, written: pass.written };
        let access = Access { pass, bound, round: *round };
        transport.single_pass(task.header, held, shares, task.deadlines, |open| access.run(open, work))
    }
}

/// What a rank does in a pass.
#[derive(Debug, Clone, Copy)]
struct Access<'a> {
    pass: &'a Pass,
    bound: &'a Bound,
    round: usize,
}

impl Access<'_> {
    #[inline]
    fn run(self, open: &mut Open<'_>, work: &mut Scratch) -> Result<()> {
        let Self { pass: Pass { reduced, moves, .. }, bound, .. } = self;
        let Call { dtype, op, .. } = bound.call;
        let size_bytes = open.own().len();
        // With two ranks, one loop reduces and distributes.
        if let ([from], [Move::Give { to }]) = (&reduced[..], &moves[..])
            && from == to
            && let Some(op) = op.filter(|op| *op != ReduceOp::Mean)
            && let Some((held, theirs)) = open.at_hand(*from, 0..size_bytes)
        {
            kernels::joint(dtype, op)(held, theirs);
            return Ok(());
        }
        // Blocks help only if the same bytes are used several times; swaps are not divided.
        let is_cut =
            reduced.len() + moves.len() > 1 && !moves.iter().any(|one| matches!(one, Move::Swap { .. }));
        let at_a_time = if is_cut { open.block_bytes(BLOCK) } else { size_bytes.max(1) };
        for start in (0..size_bytes).step_by(at_a_time) {
            let part = start..size_bytes.min(start + at_a_time);
            if !reduced.is_empty() {
                self.reduce(open, &part, work)?;
            }
            for one in moves {
                match *one {
                    Move::Take { from } => open.take(from, part.clone())?,
                    Move::Give { to } => open.give(to, part.clone())?,
                    Move::Swap { with, block } => self.swap(open, with, block)?,
                }
            }
        }
        Ok(())
    }

    fn reduce(self, open: &mut Open<'_>, part: &Range<usize>, work: &mut Scratch) -> Result<()> {
        let Self { pass: Pass { reduced, .. }, bound, .. } = self;
        let (dtype, op) =
            (bound.call.dtype, bound.call.op.expect("a call with a reduction has an operation"));
        if let Some(accumulator) = bound.format.accumulator {
            return self.reduce_widened(accumulator, open, part, work);
        }
        let kernel = kernels::kernel(dtype, op);
        for &other in reduced {
            let (held, theirs) = open.both(other, part.clone())?;
            kernel(held, theirs);
        }
        if op == ReduceOp::Mean {
            kernels::divide(dtype, &mut open.own()[part.clone()], bound.ranks);
        }
        Ok(())
    }

    /// Bitwise equal to the result by messages: the sum is rounded once, and the mean once more.
    fn reduce_widened(
        self,
        accumulator: Accumulator,
        open: &mut Open<'_>,
        part: &Range<usize>,
        work: &mut Scratch,
    ) -> Result<()> {
        let Self { pass: Pass { reduced, .. }, bound, .. } = self;
        let held = work.reserve(part.len() / bound.format.wire_size_bytes * bound.format.held_size_bytes)?;
        (accumulator.codec.decode)(held, &open.own()[part.clone()]);
        for &other in reduced {
            let (_, theirs) = open.both(other, part.clone())?;
            (accumulator.reduce)(held, theirs);
        }
        (accumulator.round)(held, &mut open.own()[part.clone()]);
        if bound.call.op == Some(ReduceOp::Mean) {
            kernels::divide(DType::F32, held, bound.ranks);
            (accumulator.round)(held, &mut open.own()[part.clone()]);
        }
        Ok(())
    }

    /// Swaps a block with another rank, which swaps the other one.
    fn swap(self, open: &mut Open<'_>, with: Rank, block: usize) -> Result<()> {
        let Self { pass, bound, round } = self;
        let theirs = pass.bytes(with, bound, round);
        let of_round = bound.blocks_of_round();
        let half = |block| partition::elements(theirs.len(), of_round, Chunks::one(block));
        open.swap(with, theirs.clone(), half(block))
    }
}
