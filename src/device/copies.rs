//! The copies of a pipelined array alone, without vendors, host or other ranks in between: for benchmarks.

use cudarc::driver::CudaStream;

use super::segments::{AHEAD, SLOTS, Segment, count_for};
use super::{Gpu, wait_for};
use crate::error::Result;
use crate::gpu::{Span, cuda, moment};
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
        let of = count_for(count);
        let ranges = |number, is_copied: bool| {
            let segment = Segment { number, of, count }.whole();
            is_copied.then_some(segment).into_iter().collect::<Vec<_>>()
        };
        self.down.wait(&moment(stream)?).map_err(cuda("order of streams"))?;
        for number in 0..of + AHEAD {
            if number < of {
                self.slots[number % SLOTS].fetch(span, &ranges(number, way != Way::Up), None, &self.down)?;
            }
            if let Some(number) = number.checked_sub(AHEAD) {
                let slot = &mut self.slots[number % SLOTS];
                wait_for(|| slot.is_fetched(), "a copy from the GPU", waits, || Ok(()))?;
                slot.give_back(span, &ranges(number, way != Way::Down), &self.up)?;
            }
        }
        let reached = moment(&self.up)?;
        let is_over = || reached.try_is_complete().map_err(cuda("a copy to the GPU"));
        wait_for(is_over, "a copy to the GPU", waits, || Ok(()))
    }
}
