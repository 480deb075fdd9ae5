//! Arrays in GPU memory, pipelined over segments through pinned memory of the host: while the host reduces one segment among the ranks,
//! the next ones are copied down and the one before is copied up.
//!
//! A vendor (NCCL) may carry out the phases of a plan inside nodes, on the GPU, before and after the host's part.

use std::ops::Range;
use std::sync::Arc;

use super::CompiledPlan;
use crate::partition;
use crate::plan::VendorCall;
use crate::schedule::Chunks;

/// The number of segments that are copied down while the host works on one.
const AHEAD: usize = 2;
/// The largest segment, so that the segments in flight fit in a few slots of pinned memory.
const MAX_BYTES: usize = 4 << 20;
/// The smallest segment of an array with several: a smaller copy takes no less time than starting it.
const MIN_BYTES: usize = 128 << 10;
/// The number of segments to aim for: the first copy down and the last copy up are not overlapped.
const MIN_SEGMENTS: usize = 4;

/// A rank's plan for an array in GPU memory.
#[derive(Debug)]
pub struct StagedPlan {
    chunk_count: usize,
    /// The vendor's call before the host's part.
    pub inward: Option<VendorCall>,
    /// The chunks of a segment that are copied to the host, and the plan that reduces them there, if this rank has such a part.
    pub host: Option<(Chunks, Arc<CompiledPlan>)>,
    /// The vendor's call after the host's part.
    pub outward: Option<VendorCall>,
    /// Whether any rank calls a vendor, which needs the elements of a segment to be contiguous.
    is_contiguous: bool,
}

/// An action of a rank on a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StagedAct {
    /// The vendor's call on the GPU before the host's part.
    Inward,
    /// Starts the copy to the host, after the vendor's call.
    CopyDown,
    /// Waits for the copy, and reduces the segment among the ranks.
    Reduce,
    /// Starts the copy back to the GPU.
    CopyUp,
    /// The vendor's call on the GPU after the copy back.
    Outward,
}

impl StagedPlan {
    /// The number of slots of pinned memory; segment `i` uses slot `i` modulo this. One for each segment that is copied down ahead,
    /// one for the segment on the host, and one for the segment that is copied up.
    pub const SLOTS: usize = AHEAD + 2;

    /// Returns the plan carried out entirely on the host.
    pub fn on_host(compiled: Arc<CompiledPlan>) -> Self {
        let chunk_count = compiled.plan().chunk_count();
        let host = Some((Chunks::new(0, chunk_count), compiled));
        Self { chunk_count, inward: None, host, outward: None, is_contiguous: false }
    }

    /// Returns the plan in which a vendor carries out every phase that names a vendor call.
    pub fn with_vendor(compiled: &CompiledPlan) -> Self {
        let plan = compiled.plan();
        let by_vendor = |inward| {
            let mut calls = plan.phases().iter().filter_map(|phase| phase.vendor.as_ref());
            calls.find(|call| call.operation.reduces() == inward).cloned()
        };
        let host = plan.without_vendors().map(|(chunks, rest)| (chunks, Arc::new(compiled.part(rest))));
        let (inward, outward) = (by_vendor(true), by_vendor(false));
        Self { chunk_count: plan.chunk_count(), inward, host, outward, is_contiguous: true }
    }

    /// Returns the number of segments of an array, given the size of the part of it that one rank copies to its host. It is identical on all
    /// ranks.
    pub fn segments(part_bytes: usize) -> usize {
        let segment_bytes = (part_bytes / MIN_SEGMENTS).clamp(MIN_BYTES, MAX_BYTES);
        part_bytes.div_ceil(segment_bytes).max(1)
    }

    /// Returns the actions of this rank on an array of `segments` segments, each with its segment, in order. All ranks make their vendor
    /// calls in the same order.
    pub fn acts(&self, segments: usize) -> impl Iterator<Item = (StagedAct, usize)> + use<> {
        let (inward, host, outward) = (self.inward.is_some(), self.host.is_some(), self.outward.is_some());
        acts(segments).filter(move |(act, _)| match act {
            StagedAct::Inward => inward,
            StagedAct::Outward => outward,
            StagedAct::CopyDown | StagedAct::Reduce | StagedAct::CopyUp => host,
        })
    }

    /// Returns the elements of these chunks of the plan in a segment, counted from its beginning.
    pub fn part(&self, segment: &Range<usize>, chunks: Chunks) -> Range<usize> {
        partition::elements(segment.len(), self.chunk_count, chunks)
    }

    /// Returns the elements of segment `number` of `of`, of an array of `count` elements, that this rank copies to its host, as
    /// ranges in the order in which they lie there.
    pub fn on_host_of(&self, count: usize, number: usize, of: usize) -> Vec<Range<usize>> {
        let Some((chunks, _)) = self.host else { return Vec::new() };
        if self.is_contiguous {
            // A vendor needs a segment in one range.
            let whole = partition::elements(count, of, Chunks::one(number));
            return Vec::from([shifted(self.part(&whole, chunks), whole.start)]);
        }
        part_of_each_chunk(count, self.chunk_count, number, of)
    }
}

/// Returns the actions on `segments` segments, if both a vendor and the host take part.
pub fn acts(segments: usize) -> impl Iterator<Item = (StagedAct, usize)> {
    use StagedAct::{CopyDown, CopyUp, Inward, Outward, Reduce};
    (0..segments + AHEAD).flat_map(move |tick| {
        let down = (tick < segments).then(|| [Inward, CopyDown].map(|act| (act, tick)));
        let up = tick.checked_sub(AHEAD).map(|segment| [Reduce, CopyUp, Outward].map(|act| (act, segment)));
        down.into_iter().flatten().chain(up.into_iter().flatten())
    })
}

/// Returns the elements of a segment that has its part of every chunk, as ranges in order. Every element stays in its chunk, and is reduced in
/// the same order as in an array that is not split: the parts of all chunks, in this order, are the chunks of a smaller array.
fn part_of_each_chunk(count: usize, chunk_count: usize, number: usize, of: usize) -> Vec<Range<usize>> {
    let part_of = |chunk| {
        let chunk = partition::elements(count, chunk_count, Chunks::one(chunk));
        let part = partition::elements(chunk.len(), of, Chunks::one(number));
        shifted(part, chunk.start)
    };
    (0..chunk_count).map(part_of).fold(Vec::new(), |mut ranges: Vec<Range<usize>>, next| {
        match ranges.last_mut() {
            _ if next.is_empty() => {}
            Some(last) if last.end == next.start => last.end = next.end,
            _ => ranges.push(next),
        }
        ranges
    })
}

fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::operation::Operation;
    use crate::world::Topology;

    /// Returns the staged plans of all ranks, on the host alone and with a vendor, of every algorithm that offers it.
    fn all() -> Vec<StagedPlan> {
        let topologies =
            [Topology::single_node(3), Topology::uniform(2, 2), Topology::from_node_sizes(&[3, 1])];
        let mut all = Vec::new();
        for topology in &topologies {
            for algorithm in Algorithm::ALL {
                for rank in 0..topology.ranks() {
                    let compiled =
                        CompiledPlan::new(algorithm, Operation::AllReduce, topology, rank).unwrap();
                    if algorithm.descriptor().levels.is_some() {
                        all.push(StagedPlan::with_vendor(&compiled));
                    }
                    all.push(StagedPlan::on_host(Arc::new(compiled)));
                }
            }
        }
        all
    }

    #[test]
    fn no_slot_is_overwritten_and_every_segment_completes() {
        for staged in all() {
            for segments in 0..3 * StagedPlan::SLOTS {
                let mut slots = [None; StagedPlan::SLOTS];
                let mut done = vec![Vec::new(); segments];
                for (act, segment) in staged.acts(segments) {
                    let slot = &mut slots[segment % StagedPlan::SLOTS];
                    match act {
                        StagedAct::CopyDown => assert_eq!(slot.replace(segment), None, "{act:?}"),
                        StagedAct::Reduce => assert_eq!(*slot, Some(segment), "{act:?}"),
                        StagedAct::CopyUp => assert_eq!(slot.take(), Some(segment), "{act:?}"),
                        StagedAct::Inward | StagedAct::Outward => {}
                    }
                    done[segment].push(act);
                }
                for done in done {
                    let host = [StagedAct::CopyDown, StagedAct::Reduce, StagedAct::CopyUp];
                    let inward = staged.inward.as_ref().map(|_| StagedAct::Inward).into_iter();
                    let host = staged.host.as_ref().map_or(&[][..], |_| &host).iter().copied();
                    let outward = staged.outward.as_ref().map(|_| StagedAct::Outward);
                    assert_eq!(done, inward.chain(host).chain(outward).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn next_segments_are_copied_down_before_the_host_waits() {
        let world = Topology::single_node(2);
        let compiled = CompiledPlan::new(Algorithm::Ring, Operation::AllReduce, &world, 0).unwrap();
        let acts: Vec<_> = StagedPlan::on_host(Arc::new(compiled)).acts(8).collect();
        let position = |expected| acts.iter().position(|&act| act == expected).unwrap();
        for segment in 0..8 - AHEAD {
            assert!(
                position((StagedAct::CopyDown, segment + AHEAD)) < position((StagedAct::Reduce, segment))
            );
        }
    }

    #[test]
    fn small_arrays_stay_whole_and_large_ones_have_equal_segments() {
        assert_eq!([0, 8, 128 << 10].map(StagedPlan::segments), [1, 1, 1]);
        assert_eq!(StagedPlan::segments((128 << 10) + 1), 2);
        assert_eq!(StagedPlan::segments(4 << 20), 4);
        assert_eq!(StagedPlan::segments(64 << 20), 16);
    }

    proptest! {
        #[test]
        fn parts_of_all_chunks_are_the_chunks_of_a_segment(
            count in 0..5000_usize,
            chunk_count in 1..40_usize,
            of in 1..20_usize,
        ) {
            let mut counts = vec![0; count];
            for number in 0..of {
                let ranges = part_of_each_chunk(count, chunk_count, number, of);
                let elements: Vec<_> = ranges.into_iter().flatten().collect();
                for (position, &element) in elements.iter().enumerate() {
                    counts[element] += 1;
                    let chunk_of = |count, element| {
                        let within = |&chunk: &usize| partition::elements(count, chunk_count, Chunks::one(chunk)).contains(&element);
                        (0..chunk_count).find(within)
                    };
                    prop_assert_eq!(chunk_of(elements.len(), position), chunk_of(count, element));
                }
            }
            prop_assert!(counts.iter().all(|&times| times == 1));
        }
    }
}
