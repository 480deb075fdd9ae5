//! Passes over memory that all ranks access: a rank works on its own part of all buffers.

use std::ops::Range;

use unisono_collectives::program::{Instruction, Part, Place};
use unisono_collectives::{Combine, Rank};

use super::Bound;

/// The instructions between two barriers, and the accesses of other ranks to this rank's buffer during them.
#[derive(Debug)]
pub(in crate::executor) struct Pass {
    /// The elements of this rank's buffer that each rank works on, in all rounds. This rank works on its range in all buffers.
    parts: Vec<Range<usize>>,
    /// The largest part of any rank in a round, in bytes, rounded up to whole cache lines. It is identical on all ranks.
    pub(in crate::executor) share_bytes: usize,
    /// Whether other ranks read this rank's buffer.
    pub(in crate::executor) read: bool,
    /// Whether other ranks write to it.
    pub(in crate::executor) written: bool,
    /// The ranks whose elements are reduced into this rank's, in order, and the side of their operands.
    pub(in crate::executor) reduced: Vec<(Rank, Combine)>,
    /// The moves after the reductions.
    pub(in crate::executor) moves: Vec<Move>,
}

#[derive(Debug)]
pub(in crate::executor) enum Move {
    /// Copies from another rank's buffer to this rank's.
    Get { from: Rank },
    /// Copies from this rank's buffer to another rank's.
    Put { to: Rank },
    /// Swaps one block of the other rank's part of this buffer with the same block of this rank's part of the other buffer.
    Swap { with: Rank, block: usize },
}

impl Pass {
    /// Binds the instructions of a pass, which it removes from `rest`.
    pub(super) fn next(bound: &Bound, rest: &mut &[(Place, Instruction)]) -> Result<Self, &'static str> {
        let is_sync = |(_, instruction): &(Place, Instruction)| *instruction == Instruction::Sync;
        let begin = rest.iter().position(is_sync).ok_or("memory is lent without a pass")?;
        let (lends, inside) = (&rest[..begin], &rest[begin + 1..]);
        let end = inside.iter().position(is_sync).ok_or("a pass does not end")?;
        *rest = &inside[end + 1..];
        let block = bound.partition.largest().div_ceil(bound.blocks);
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
                return Err("an instruction between lending memory and the pass");
            };
            pass.part_of(to, part, bound)?;
            (pass.read, pass.written) = (pass.read | read, pass.written | written);
        }
        for (_, access) in &inside[..end] {
            match *access {
                Instruction::Read { of, theirs, own, combine } if theirs == own => {
                    pass.part_of(bound.rank, own, bound)?;
                    match combine {
                        Combine::Replace => pass.moves.push(Move::Get { from: of }),
                        _ if bound.call.op.is_none() => return Err("a call without a reduction reduces"),
                        _ if pass.moves.is_empty() => pass.reduced.push((of, combine)),
                        _ => return Err("a pass reduces after a move"),
                    }
                }
                Instruction::Write { to, theirs, own } if theirs == own => {
                    pass.part_of(bound.rank, own, bound)?;
                    pass.moves.push(Move::Put { to });
                }
                Instruction::Swap { with, theirs, own }
                    if theirs.block == own.block && bound.blocks_of_round() == 2 =>
                {
                    pass.part_of(bound.rank, theirs, bound)?;
                    pass.part_of(with, own, bound)?;
                    pass.moves.push(Move::Swap { with, block: own.block });
                }
                _ => return Err("a pass accesses more than one part of all buffers"),
            }
        }
        let worked_on = pass.parts.iter().filter(|part| part.start < part.end).map(|part| part.start);
        let mut worked_on: Vec<_> = worked_on.collect();
        worked_on.sort_unstable();
        if worked_on.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("two ranks work on one part in a pass");
        }
        Ok(pass)
    }

    /// Records the chunk that a rank works on: all blocks of a round.
    fn part_of(&mut self, rank: Rank, Part { chunks, .. }: Part, bound: &Bound) -> Result<(), &'static str> {
        if chunks.count() != 1 {
            return Err("a rank works on several chunks in a pass");
        }
        let all = bound.partition.elements(chunks);
        let recorded = &mut self.parts[rank];
        if *recorded != (0..0) && *recorded != all {
            return Err("a rank works on two parts in a pass");
        }
        *recorded = all;
        Ok(())
    }

    #[inline]
    pub(in crate::executor) fn bytes(&self, rank: Rank, bound: &Bound, round: usize) -> Range<usize> {
        self.bytes_of_blocks(rank, 0..bound.blocks_of_round(), bound, round)
    }

    /// Returns the bytes that a rank works on in some blocks of a round.
    #[inline]
    pub(in crate::executor) fn bytes_of_blocks(
        &self,
        rank: Rank,
        blocks: Range<usize>,
        bound: &Bound,
        round: usize,
    ) -> Range<usize> {
        bound.call.bytes_of(bound.elements_of_blocks(&self.parts[rank], blocks, round))
    }
}
