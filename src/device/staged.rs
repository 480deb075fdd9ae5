//! Carries out a [`StagedPlan`]: the vendor's calls on the GPU, copies to and from pinned memory, and the executor in between.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use unisono_collectives::execution::{StagedAct, StagedPlan};
use unisono_collectives::{Chunks, VendorCall, partition};

use super::behind::wait_behind_nccl;
use super::setup::Gpu;
use crate::call::Call;
use crate::error::Result;
use crate::executor::{Bound, Executor, Task};
use crate::gpu::{Span, cuda};
use crate::kernels::ReduceOp;
use crate::transport::Fabric;

pub(crate) struct Pipeline<'a> {
    pub(crate) gpu: &'a mut Gpu,
    pub(crate) staged: &'a StagedPlan,
    /// The call of the whole array. Every segment is a separate call.
    pub(crate) call: &'a Call,
    pub(crate) task: Task<'a>,
    pub(crate) vendor_op: Option<ReduceOp>,
    /// The program of the last segment on the host, and its number of elements, which most segments share.
    pub(crate) bound: Option<(usize, Bound)>,
    pub(crate) segments: usize,
    pub(crate) executor: &'a mut Executor,
    pub(crate) transport: &'a mut Fabric,
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

    fn all_segments(&mut self, span: &mut Span<'_>) -> Result<()> {
        let begun = self.stream.record_event(None).map_err(cuda("order of streams"))?;
        self.gpu.down.wait(&begun).map_err(cuda("order of streams"))?;
        let staged = self.staged;
        for (act, segment) in staged.acts(self.segments) {
            match act {
                StagedAct::Inward => self.by_vendor(segment, staged.inward.as_ref(), span)?,
                StagedAct::CopyDown => self.copy_down(segment, span)?,
                StagedAct::Reduce => self.by_host(segment)?,
                StagedAct::CopyUp => self.copy_up(segment, span)?,
                StagedAct::Outward => self.by_vendor(segment, staged.outward.as_ref(), span)?,
            }
        }
        if let (Some(_), Some(last)) = (&staged.host, self.segments.checked_sub(1)) {
            // Copies up complete in order, so the last one is enough.
            self.gpu.slots[last % StagedPlan::SLOTS].order_after(self.stream)?;
        }
        Ok(())
    }

    fn copy_down(&mut self, number: usize, span: &mut Span<'_>) -> Result<()> {
        let ranges = self.ranges(number);
        let Gpu { slots, down, .. } = &mut *self.gpu;
        let vendors = self.staged.inward.is_some().then_some(&**self.stream);
        slots[number % StagedPlan::SLOTS].fetch(span, &ranges, vendors, down)
    }

    fn copy_up(&mut self, number: usize, span: &mut Span<'_>) -> Result<()> {
        let ranges = self.ranges(number);
        let Gpu { slots, up, .. } = &mut *self.gpu;
        let slot = &mut slots[number % StagedPlan::SLOTS];
        slot.copy_back(span, &ranges, up)?;
        if self.staged.outward.is_some() { slot.order_after(self.stream) } else { Ok(()) }
    }

    fn by_host(&mut self, number: usize) -> Result<()> {
        let (_, compiled) = self.staged.host.as_ref().expect("the host has a part");
        let ranges = self.ranges(number);
        let Self { gpu, call, task, bound, executor, transport, .. } = self;
        let Gpu { slots, nccl, last, .. } = &mut **gpu;
        let (slot, what) = (&mut slots[number % StagedPlan::SLOTS], "a copy from the GPU");
        let before = (nccl.as_ref(), last.as_ref());
        wait_behind_nccl(|| slot.is_fetched(), what, before, task.deadlines, transport)?;
        let size_bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        let call = Call { count: size_bytes / call.dtype.size_bytes(), ..**call };
        let known = bound.take_if(|(count, _)| *count == call.count);
        let of_call = || (call.count, Bound::compile(compiled, &call, task.method, None, transport));
        let (_, bound) = bound.insert(known.unwrap_or_else(of_call));
        let header = task.header.later(number as u64);
        let segment = Task { header: &header, ..*task };
        executor.run(bound, &segment, slot.bytes(), transport)
    }

    fn by_vendor(&mut self, number: usize, call: Option<&VendorCall>, span: &mut Span<'_>) -> Result<()> {
        let Call { dtype, count, .. } = *self.call;
        let whole = partition::elements(count, self.segments, Chunks::one(number));
        let size_bytes = dtype.size_bytes();
        let mut segment = span.part(whole.start * size_bytes..whole.end * size_bytes);
        let VendorCall { operation, parts } = call.expect("the vendor has a part");
        let op = self.vendor_op.filter(|_| operation.reduces());
        let parts: Vec<_> = parts.iter().map(|&chunks| self.staged.part(&whole, chunks)).collect();
        self.gpu.nccl().run(&mut segment, (*operation, op, dtype), &parts, self.stream)
    }

    /// Returns the byte ranges of a segment that are copied to the host, in their order there.
    fn ranges(&self, number: usize) -> Vec<Range<usize>> {
        let Call { dtype, count, .. } = *self.call;
        let size_bytes = dtype.size_bytes();
        let elements = self.staged.on_host_of(count, number, self.segments);
        elements.into_iter().map(|range| range.start * size_bytes..range.end * size_bytes).collect()
    }
}
