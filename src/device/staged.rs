//! The pipeline of an array's segments: the vendor's first call on the GPU, the copy to the host, the executor, the copy back,
//! the vendor's second call.
//!
//! While the host works on a segment, the next two are copied down and the one before is copied up.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use unisono_collectives::execution::Execution;
use unisono_collectives::{Chunks, Topology, VendorCall, partition};

use super::plan::{OnHost, Staged};
use super::segments::{AHEAD, SLOTS, Segment, shifted};
use super::setup::{Gpu, check};
use super::wait_for;
use crate::call::Call;
use crate::error::Result;
use crate::executor::{Executor, Task, capabilities};
use crate::gpu::{Span, cuda};
use crate::kernels::ReduceOp;
use crate::transport::Transport;

/// A pipelined all-reduce.
pub(crate) struct Pipeline<'a> {
    pub(crate) gpu: &'a mut Gpu,
    pub(crate) staged: &'a Staged,
    /// The call of the whole array; every segment has a call of its own.
    pub(crate) task: Task<'a>,
    /// The execution of the last segment on the host, and its number of elements: most segments have the same number.
    pub(crate) execution: Option<(usize, Execution)>,
    pub(crate) segments: usize,
    pub(crate) executor: &'a mut Executor,
    pub(crate) transport: &'a mut Transport,
    /// The caller's stream, with which the work is ordered.
    pub(crate) stream: &'a Arc<CudaStream>,
}

impl Pipeline<'_> {
    pub(crate) fn run(&mut self, span: &mut Span<'_>) -> Result<()> {
        let done = self.all_segments(span);
        if done.is_err() {
            // Copies may be in flight, and the array must not be freed before they end.
            let Gpu { down, up, .. } = &*self.gpu;
            let _ = self.stream.join(down).and_then(|()| self.stream.join(up));
        }
        done
    }

    /// Runs all segments. All ranks run the same loop, so vendor calls come in the same order everywhere.
    fn all_segments(&mut self, span: &mut Span<'_>) -> Result<()> {
        let begun = self.stream.record_event(None).map_err(cuda("order of streams"))?;
        self.gpu.down.wait(&begun).map_err(cuda("order of streams"))?;
        for number in 0..self.segments + AHEAD {
            if number < self.segments {
                self.bring(number, span)?;
            }
            if let Some(number) = number.checked_sub(AHEAD) {
                self.finish(number, span)?;
            }
        }
        if let (Some(_), Some(last)) = (&self.staged.host, self.segments.checked_sub(1)) {
            // Copies up complete in order, so the last one is enough.
            self.gpu.slots[last % SLOTS].hold_back(self.stream)?;
        }
        Ok(())
    }

    /// Queues the vendor's first call on a segment, and its copy down.
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

    /// Executes the host's part of a segment, and queues its copy up and the vendor's second call.
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
        let (place, what) = (number % SLOTS, "a copy from the GPU");
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
        let segment = Task { call: &call, header, compiled, execution, ..*task };
        executor.run(&segment, slot.bytes(), transport)
    }

    fn by_vendor(&mut self, number: usize, call: &VendorCall, span: &mut Span<'_>) -> Result<()> {
        let Call { dtype, count, .. } = *self.task.call;
        let whole = Segment { number, of: self.segments, count }.whole();
        let part = |&chunks: &Chunks| partition::elements(whole.len(), self.staged.chunk_count, chunks);
        let parts = |parts: &[Chunks]| parts.iter().map(part).collect::<Vec<_>>();
        let size_bytes = dtype.size_bytes();
        let mut segment = span.part(whole.start * size_bytes..whole.end * size_bytes);
        let (nccl, op) = (self.gpu.nccl(), vendor_op(self.task.call, self.task.topology));
        match call {
            VendorCall::Reduce { root } => nccl.reduce(&mut segment, dtype, op, *root, self.stream),
            VendorCall::ReduceScatter { parts: chunks } => {
                nccl.reduce_scatter(&mut segment, &parts(chunks), dtype, op, self.stream)
            }
            VendorCall::AllGather { parts: chunks } => {
                nccl.all_gather(&mut segment, &parts(chunks), dtype, self.stream)
            }
            VendorCall::Broadcast { root } => nccl.broadcast(&mut segment, dtype, *root, self.stream),
        }
    }

    /// The byte ranges of a segment that are copied to the host, in the order in which they lie there.
    fn ranges(&self, number: usize, host: &OnHost) -> Vec<Range<usize>> {
        let Call { dtype, count, .. } = *self.task.call;
        let segment = Segment { number, of: self.segments, count };
        let elements = if self.staged.in_whole_segments {
            let whole = segment.whole();
            let held = partition::elements(whole.len(), self.staged.chunk_count, host.chunks);
            Vec::from([shifted(held, whole.start)])
        } else {
            segment.of_each_chunk(self.staged.chunk_count)
        };
        let size_bytes = dtype.size_bytes();
        elements.into_iter().map(|range| range.start * size_bytes..range.end * size_bytes).collect()
    }
}

/// The vendor's reduction: over several nodes the vendor sums and the host divides.
fn vendor_op(call: &Call, topology: &Topology) -> ReduceOp {
    match call.op.expect("an all-reduce has a reduction") {
        ReduceOp::Mean if topology.nodes() > 1 => ReduceOp::Sum,
        op => op,
    }
}
