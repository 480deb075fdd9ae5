//! Runs a pass.

use std::ops::Range;

use unisono_collectives::Rank;

use super::{Bound, Move, Pass, Run};
use crate::call::Call;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, Accumulator, ReduceOp};
use crate::memory::Scratch;
use crate::transport::{Fabric, Failure, Open, Shares};

/// The number of bytes worked on at a time: this rank's block and another's fit the L1 cache together.
const BLOCK: usize = 8 << 10;

impl Run<'_> {
    pub(super) fn pass(&mut self, pass: &Pass, transport: &mut Fabric) -> Result<(), Failure> {
        let Self { bound, task, held, work, round, .. } = self;
        let ranges = |rank| pass.bytes(rank, bound, *round);
        let shares = Shares { ranges, share_bytes: pass.share_bytes, read: pass.read, written: pass.written };
        let run = |open: &mut Open<'_>| pass.run(bound, *round, open, work);
        transport.single_pass(task.header, held, shares, task.deadlines, run)
    }
}

impl Pass {
    #[inline]
    fn run(&self, bound: &Bound, round: usize, open: &mut Open<'_>, work: &mut Scratch) -> Result<()> {
        let Self { reduced, moves, .. } = self;
        let Call { dtype, op, .. } = bound.call;
        let size_bytes = open.own().len();
        // With two ranks, one loop reduces and distributes.
        if let ([(from, _)], [Move::Put { to }]) = (&reduced[..], &moves[..])
            && from == to
            && let Some(op) = op.filter(|op| !matches!(op, ReduceOp::Mean | ReduceOp::Custom(_)))
            && let Some((held, theirs)) = open.mapped(*from, 0..size_bytes)
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
                self.reduce(bound, open, &part, work)?;
            }
            for one in moves {
                match *one {
                    Move::Get { from } => open.get(from, part.clone())?,
                    Move::Put { to } => open.put(to, part.clone())?,
                    Move::Swap { with, block } => self.swap(bound, round, open, with, block)?,
                }
            }
        }
        Ok(())
    }

    fn reduce(
        &self,
        bound: &Bound,
        open: &mut Open<'_>,
        part: &Range<usize>,
        work: &mut Scratch,
    ) -> Result<()> {
        if let Some(accumulator) = bound.format.accumulator {
            return self.reduce_widened(bound, accumulator, open, part, work);
        }
        for &(other, combine) in &self.reduced {
            let (held, theirs) = open.both(other, part.clone());
            bound.format.target(held, combine).accept(0, theirs);
        }
        if bound.call.op == Some(ReduceOp::Mean) {
            kernels::divide(bound.call.dtype, &mut open.own()[part.clone()], bound.ranks);
        }
        Ok(())
    }

    /// Reduces in the wider format. The result is bitwise equal to one by messages: the sum is rounded once, and the mean once more.
    fn reduce_widened(
        &self,
        bound: &Bound,
        accumulator: Accumulator,
        open: &mut Open<'_>,
        part: &Range<usize>,
        work: &mut Scratch,
    ) -> Result<()> {
        let held = work.reserve(part.len() / bound.format.wire_size_bytes * bound.format.held_size_bytes)?;
        (accumulator.codec.decode)(held, &open.own()[part.clone()]);
        for &(other, _) in &self.reduced {
            let (_, theirs) = open.both(other, part.clone());
            (accumulator.reduce)(held, theirs);
        }
        (accumulator.round)(held, &mut open.own()[part.clone()]);
        if bound.call.op == Some(ReduceOp::Mean) {
            kernels::divide(DType::F32, held, bound.ranks);
            (accumulator.round)(held, &mut open.own()[part.clone()]);
        }
        Ok(())
    }

    /// Swaps a block with another rank, which swaps the other block.
    fn swap(&self, bound: &Bound, round: usize, open: &mut Open<'_>, with: Rank, block: usize) -> Result<()> {
        let theirs = self.bytes(with, bound, round);
        let half = self.bytes_of_blocks(with, block..block + 1, bound, round);
        let half = half.start - theirs.start..half.end - theirs.start;
        open.swap(with, theirs, half)
    }
}
