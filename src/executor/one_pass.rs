//! A single-pass direct all-reduce, where all ranks access all buffers: no messages.

use std::ops::Range;

use unisono_collectives::Direct;

use super::Task;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::{self, Accumulator, Kernel, ReduceOp};
use crate::memory::Scratch;
use crate::transport::{Open, Shares, Transport};

/// The number of bytes reduced before they are distributed: this rank's block and another's fit the L1 cache together.
const BLOCK: usize = 8 << 10;

/// One rank's part: it reduces its own elements block by block, and writes each result to every rank while it is in the core's
/// cache.
#[derive(Debug)]
pub(super) struct OnePass<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) direct: &'a Direct,
    pub(super) blocks: usize,
    pub(super) op: ReduceOp,
    pub(super) accumulator: Option<Accumulator>,
}

impl OnePass<'_> {
    pub(super) fn run(
        &self,
        buffer: &mut [u8],
        widened: &mut Scratch,
        transport: &mut Transport,
    ) -> Result<()> {
        let (Task { call, header, deadlines, .. }, blocks) = (*self.task, self.blocks);
        for block in 0..blocks {
            let range = |rank: usize| {
                let elements = self.task.elements_of_block(self.direct.owned[rank], block, blocks);
                call.bytes_of(elements)
            };
            if block > 0 {
                transport.status().at_step(0, block);
            }
            let shares = Shares { ranges: range, read: true, written: true };
            transport
                .single_pass(&header, buffer, shares, deadlines, |open| self.work(open, widened))
                .map_err(|failure| self.task.error(failure, transport, "one pass", block))?;
        }
        Ok(())
    }

    fn work(&self, open: &mut Open<'_>, widened: &mut Scratch) -> Result<()> {
        let (dtype, size_bytes) = (self.task.call.dtype, open.own().len());
        // With two ranks, one loop reduces and distributes.
        if let [other] = self.direct.from[..]
            && self.op != ReduceOp::Mean
            && let Some((held, theirs)) = open.at_hand(other, 0..size_bytes)
        {
            kernels::joint(dtype, self.op)(held, theirs);
            return Ok(());
        }
        let (kernel, block_bytes) = (kernels::kernel(dtype, self.op), open.block_bytes(BLOCK));
        for start in (0..size_bytes).step_by(block_bytes) {
            let block = start..size_bytes.min(start + block_bytes);
            match self.accumulator {
                None => self.reduce(kernel, open, &block)?,
                Some(accumulator) => self.reduce_widened(accumulator, open, &block, widened)?,
            }
            for &other in &self.direct.from {
                open.give(other, block.clone())?;
            }
        }
        Ok(())
    }

    fn reduce(&self, kernel: Kernel, open: &mut Open<'_>, block: &Range<usize>) -> Result<()> {
        for &other in &self.direct.from {
            let (held, theirs) = open.both(other, block.clone())?;
            kernel(held, theirs);
        }
        if self.op == ReduceOp::Mean {
            kernels::divide(self.task.call.dtype, &mut open.own()[block.clone()], self.task.topology.ranks());
        }
        Ok(())
    }

    /// Bitwise equal to the result by messages: the sum is rounded once, and the mean once more.
    fn reduce_widened(
        &self,
        accumulator: Accumulator,
        open: &mut Open<'_>,
        block: &Range<usize>,
        widened: &mut Scratch,
    ) -> Result<()> {
        let held = widened.reserve(block.len() / self.task.call.dtype.size_bytes() * size_of::<f32>())?;
        (accumulator.codec.decode)(held, &open.own()[block.clone()]);
        for &other in &self.direct.from {
            let (_, theirs) = open.both(other, block.clone())?;
            (accumulator.reduce)(held, theirs);
        }
        (accumulator.round)(held, &mut open.own()[block.clone()]);
        if self.op == ReduceOp::Mean {
            kernels::divide(DType::F32, held, self.task.topology.ranks());
            (accumulator.round)(held, &mut open.own()[block.clone()]);
        }
        Ok(())
    }
}
