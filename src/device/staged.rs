//! The way of an array's pieces: by vendors on the GPU, down to the host, among the ranks, up again, and by vendors.
//!
//! While the host works on a piece, the next ones come down and the one before goes up.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use unisono_collectives::execution::Execution;
use unisono_collectives::{Chunks, Topology, VendorCall, partition};

use super::pieces::{AHEAD, Piece, SLOTS, shifted};
use super::plan::{OnHost, Staged};
use super::setup::{Gpu, check};
use super::wait_for;
use crate::call::Call;
use crate::error::Result;
use crate::executor::{Executor, Task, capabilities};
use crate::gpu::{Span, cuda};
use crate::kernels::ReduceOp;
use crate::transport::Transport;

/// An all-reduce in pieces.
pub(crate) struct Pipeline<'a> {
    pub(crate) gpu: &'a mut Gpu,
    pub(crate) staged: &'a Staged,
    /// The call of the array as a whole: every piece has its own.
    pub(crate) task: Task<'a>,
    /// How the last piece was carried out on the host, and how many elements it had: most have as many.
    pub(crate) execution: Option<(usize, Execution)>,
    pub(crate) pieces: usize,
    pub(crate) executor: &'a mut Executor,
    pub(crate) transport: &'a mut Transport,
    /// What the work is ordered with.
    pub(crate) stream: &'a Arc<CudaStream>,
}

impl Pipeline<'_> {
    pub(crate) fn run(&mut self, span: &mut Span<'_>) -> Result<()> {
        let done = self.all_pieces(span);
        if done.is_err() {
            // Copies may be on their way, and the array is not to be freed before them.
            let Gpu { down, up, .. } = &*self.gpu;
            let _ = self.stream.join(down).and_then(|()| self.stream.join(up));
        }
        done
    }

    /// All ranks go through the same loop, so vendors meet the pieces in the same order everywhere.
    fn all_pieces(&mut self, span: &mut Span<'_>) -> Result<()> {
        let begun = self.stream.record_event(None).map_err(cuda("order of streams"))?;
        self.gpu.down.wait(&begun).map_err(cuda("order of streams"))?;
        for number in 0..self.pieces + AHEAD {
            if number < self.pieces {
                self.bring(number, span)?;
            }
            if let Some(number) = number.checked_sub(AHEAD) {
                self.finish(number, span)?;
            }
        }
        if let (Some(_), Some(last)) = (&self.staged.host, self.pieces.checked_sub(1)) {
            // All that goes up goes up in order.
            self.gpu.slots[last % SLOTS].hold_back(self.stream)?;
        }
        Ok(())
    }

    /// The vendor's first part of a piece, and its way down.
    fn bring(&mut self, number: usize, span: &mut Span<'_>) -> Result<()> {
        if let Some(call) = &self.staged.inward {
            self.by_vendor(number, call, span)?;
        }
        if let Some(host) = &self.staged.host {
            let ranges = self.ranges(number, host);
            let Gpu { slots, down, .. } = &mut *self.gpu;
            let vendors = self.staged.inward.is_some().then_some(&**self.stream);
            slots[number % SLOTS].fetch(span, &ranges, vendors, down)?;
        }
        Ok(())
    }

    /// What the host does to a piece, its way up, and the vendor's second part.
    fn finish(&mut self, number: usize, span: &mut Span<'_>) -> Result<()> {
        if let Some(host) = &self.staged.host {
            let ranges = self.ranges(number, host);
            self.by_host(number, host, &ranges)?;
            let Gpu { slots, up, .. } = &mut *self.gpu;
            let slot = &mut slots[number % SLOTS];
            slot.give_back(span, &ranges, up)?;
            if self.staged.outward.is_some() {
                slot.hold_back(self.stream)?;
            }
        }
        if let Some(call) = &self.staged.outward {
            self.by_vendor(number, call, span)?;
        }
        Ok(())
    }

    fn by_host(&mut self, number: usize, host: &OnHost, ranges: &[Range<usize>]) -> Result<()> {
        let Self { gpu, task, execution, executor, transport, .. } = self;
        let (place, what) = (number % SLOTS, "an array's piece from the GPU");
        let (slot, nccl) = (&mut gpu.slots[place], &gpu.nccl);
        wait_for(|| slot.is_fetched(), what, (task.deadlines, transport.status()), || check(nccl.as_ref()))?;
        let size_bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        let call = Call { count: size_bytes / task.call.dtype.size_bytes(), ..*task.call };
        let header = task.header.later(number as u64);
        let compiled = &host.compiled;
        let known = execution.take_if(|(count, _)| *count == call.count);
        let (_, execution) = execution.insert(known.unwrap_or_else(|| {
            let capabilities = capabilities(transport, task.topology.ranks(), &call, task.method);
            (call.count, compiled.execution(call.count, call.dtype.size_bytes(), &capabilities))
        }));
        let piece = Task { call: &call, header, compiled, execution, ..*task };
        executor.run(&piece, slot.bytes(), transport)
    }

    fn by_vendor(&mut self, number: usize, call: &VendorCall, span: &mut Span<'_>) -> Result<()> {
        let Call { dtype, count, .. } = *self.task.call;
        let whole = Piece { number, of: self.pieces, count }.whole();
        let part = |&chunks: &Chunks| partition::elements(whole.len(), self.staged.chunk_count, chunks);
        let parts = |parts: &[Chunks]| parts.iter().map(part).collect::<Vec<_>>();
        let size_bytes = dtype.size_bytes();
        let mut piece = span.part(whole.start * size_bytes..whole.end * size_bytes);
        let (nccl, op) = (self.gpu.nccl(), vendor_op(self.task.call, self.task.topology));
        match call {
            VendorCall::Reduce { root } => nccl.reduce(&mut piece, dtype, op, *root, self.stream),
            VendorCall::ReduceScatter { parts: chunks } => {
                nccl.reduce_scatter(&mut piece, &parts(chunks), dtype, op, self.stream)
            }
            VendorCall::AllGather { parts: chunks } => {
                nccl.all_gather(&mut piece, &parts(chunks), dtype, self.stream)
            }
            VendorCall::Broadcast { root } => nccl.broadcast(&mut piece, dtype, *root, self.stream),
        }
    }

    /// The bytes of the array that the host has of a piece, in the order in which it has them.
    fn ranges(&self, number: usize, host: &OnHost) -> Vec<Range<usize>> {
        let Call { dtype, count, .. } = *self.task.call;
        let piece = Piece { number, of: self.pieces, count };
        let elements = if self.staged.in_whole_pieces {
            let whole = piece.whole();
            let held = partition::elements(whole.len(), self.staged.chunk_count, host.chunks);
            Vec::from([shifted(held, whole.start)])
        } else {
            piece.of_each_chunk(self.staged.chunk_count)
        };
        let size_bytes = dtype.size_bytes();
        elements.into_iter().map(|range| range.start * size_bytes..range.end * size_bytes).collect()
    }
}

/// Between nodes the host divides what the vendor has added up.
fn vendor_op(call: &Call, topology: &Topology) -> ReduceOp {
    match call.op.expect("an all-reduce reduces") {
        ReduceOp::Mean if topology.nodes() > 1 => ReduceOp::Sum,
        op => op,
    }
}
