//! The copies of a pipelined array alone, for benchmarks: without vendors, reductions on the host or other ranks.

use cudarc::driver::CudaStream;
use unisono_collectives::execution::{StagedAct, StagedPlan, staged_acts};
use unisono_collectives::{Chunks, partition};

use super::Gpu;
use crate::error::Result;
use crate::gpu::{Span, cuda, moment, wait_for};
use crate::status::StatusBoard;
use crate::transport::Deadlines;

/// The direction of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the GPU to the host.
    Down,
    /// From the host to the GPU.
    Up,
    /// Each segment to the host, and back.
    Both,
}

impl Gpu {
    /// Copies an array in the segments of an all-reduce through the host, and waits until the GPU has finished.
    pub(crate) fn copy_in_segments(
        &mut self,
        span: &mut Span<'_>,
        stream: &CudaStream,
        way: Way,
        waits: (&Deadlines, &StatusBoard),
    ) -> Result<()> {
        let count = span.size_bytes();
        let of = StagedPlan::segments(count);
        let ranges = |segment, is_copied: bool| {
            let elements = partition::elements(count, of, Chunks::one(segment));
            is_copied.then_some(elements).into_iter().collect::<Vec<_>>()
        };
        self.down.wait(&moment(stream)?).map_err(cuda("order of streams"))?;
        for (act, segment) in staged_acts(of) {
            match act {
                StagedAct::CopyDown => {
                    let ranges = ranges(segment, way != Way::Up);
                    self.slots[segment % StagedPlan::SLOTS].fetch(span, &ranges, None, &self.down)?;
                }
                StagedAct::Reduce => {
                    let slot = &mut self.slots[segment % StagedPlan::SLOTS];
                    wait_for(|| slot.is_fetched(), "a copy from the GPU", waits, || Ok(()))?;
                }
                StagedAct::CopyUp => {
                    let ranges = ranges(segment, way != Way::Down);
                    self.slots[segment % StagedPlan::SLOTS].copy_back(span, &ranges, &self.up)?;
                }
                StagedAct::Inward | StagedAct::Outward => {}
            }
        }
        let reached = moment(&self.up)?;
        let is_over = || reached.try_is_complete().map_err(cuda("a copy to the GPU"));
        wait_for(is_over, "a copy to the GPU", waits, || Ok(()))
    }
}
