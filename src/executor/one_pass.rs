//! A direct all-reduce where all ranks reach all buffers: no messages, one pass.

use std::ops::Range;

use unisono_collectives::Direct;

use super::{Task, scaled};
use crate::dtype::DType;
use crate::error::Result;
use crate::reduce::{self, ReduceOp, Widening};
use crate::scratch::Scratch;
use crate::transport::{Header, Open, Transport};

/// How much is reduced at a time, before it is handed out: this rank's and another's fit the first-level cache
/// together.
const BLOCK: usize = 8 << 10;

/// One rank's part: it reduces its own elements, block by block, and gives every rank the result while the block
/// is in its core's cache.
#[derive(Debug)]
pub(super) struct OnePass<'a> {
    pub(super) task: &'a Task<'a>,
    pub(super) direct: &'a Direct,
    pub(super) op: ReduceOp,
    pub(super) widening: Option<Widening>,
}

impl OnePass<'_> {
    pub(super) fn run(
        &self,
        buffer: &mut [u8],
        widened: &mut Scratch,
        transport: &mut Transport,
    ) -> Result<()> {
        let Task { call, algorithm, sequence, timeout, .. } = *self.task;
        let header = Header::new(sequence, call, algorithm).in_one_pass();
        let own = scaled(self.task.elements(self.direct.own), call.dtype.size_bytes());
        let done = transport.meet(&header, buffer, own, timeout, |open| self.all_blocks(open, widened));
        done.map_err(|failure| failure.at(self.task.place(transport.rank(), "one pass", 0)))
    }

    fn all_blocks(&self, open: &mut Open<'_>, widened: &mut Scratch) {
        let own = open.range();
        for start in own.clone().step_by(BLOCK) {
            let block = start..own.end.min(start + BLOCK);
            match self.widening {
                None => self.reduce(open, &block),
                Some(widening) => self.reduce_widened(widening, open, &block, widened),
            }
            for &other in &self.direct.from {
                let (result, theirs) = open.pair(other, block.clone());
                theirs.copy_from_slice(result);
            }
        }
    }

    fn reduce(&self, open: &mut Open<'_>, block: &Range<usize>) {
        let dtype = self.task.call.dtype;
        let kernel = reduce::kernel(dtype, self.op);
        for &other in &self.direct.from {
            let (held, theirs) = open.pair(other, block.clone());
            kernel(held, theirs);
        }
        if self.op == ReduceOp::Mean {
            reduce::divide(dtype, open.own(block.clone()), self.task.ranks);
        }
    }

    /// The same bits as if messages were sent: one rounding of the sum, and one more of the mean.
    fn reduce_widened(
        &self,
        widening: Widening,
        open: &mut Open<'_>,
        block: &Range<usize>,
        widened: &mut Scratch,
    ) {
        let held = widened.take(block.len() / self.task.call.dtype.size_bytes() * size_of::<f32>());
        (widening.replace)(held, open.own(block.clone()));
        for &other in &self.direct.from {
            let (_, theirs) = open.pair(other, block.clone());
            (widening.reduce)(held, theirs);
        }
        (widening.round)(held, open.own(block.clone()));
        if self.op == ReduceOp::Mean {
            reduce::divide(DType::F32, held, self.task.ranks);
            (widening.round)(held, open.own(block.clone()));
        }
    }
}
