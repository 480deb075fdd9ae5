//! Multi-level plans in lanes, pipelined over blocks: while one block of an array is between nodes, others are reduced and
//! distributed inside them. (Luo et al., "HAN: a hierarchical autotuned collective communication framework", IEEE CLUSTER 2020.)
//!
//! A network link idles whenever nothing is in flight, so a step between nodes is posted long before its result is needed, and
//! completed long after. All ranks follow the same timetable. In tick t
//! - the steps that have been in flight for [`DEPTH`] ticks are completed;
//! - step s between nodes is posted, for block t − 1 − s · `DEPTH`, for every s;
//! - block t is reduced in the node;
//! - the block that has completed all its steps between nodes is distributed in the node.
//!
//! In tick t, a rank thus waits only for what other ranks post before tick t, or do inside the node in tick t; these never wait
//! for this rank, so there is no deadlock.

use std::ops::RangeInclusive;

/// The number of blocks in flight between nodes, for each step.
pub(crate) const DEPTH: usize = 2;
/// The minimum and maximum part of a chunk in a block; between them, there are [`BLOCKS`] blocks. The network idles while the
/// first block is reduced and the last one distributed, so blocks should be many; but the ranks of a node synchronise for each,
/// which takes long when oversubscribed.
const BLOCK_BYTES: RangeInclusive<usize> = 32 << 10..=1 << 20;
const BLOCKS: usize = 32;

/// The order of a rank's actions in lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timetable {
    /// The number of blocks.
    pub blocks: usize,
    /// The actions, in order.
    pub acts: Vec<LaneAct>,
}

/// An action of a rank on one block of all chunks that it works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAct {
    /// Posts a step between nodes, in all inter-node phases, without waiting.
    Post {
        /// The number of the step, in each of those phases.
        step: usize,
        /// The block.
        block: usize,
    },
    /// Waits for what such a step receives, and stores or reduces it.
    Complete {
        /// The number of the step.
        step: usize,
        /// The block.
        block: usize,
    },
    /// Runs the phases in the node before those between nodes, which reduce.
    Inward {
        /// The block.
        block: usize,
    },
    /// Runs the phases in the node after them, which distribute the results.
    Outward {
        /// The block.
        block: usize,
    },
}

impl Timetable {
    /// The timetable for this chunk size, segment size and number of steps between nodes; `None` if everything fits one block.
    pub(super) fn new(chunk_bytes: usize, segment_bytes: usize, far_steps: usize) -> Option<Self> {
        let fair = (chunk_bytes / BLOCKS).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        let blocks = chunk_bytes.div_ceil(whole_segments(fair, segment_bytes));
        (blocks > 1).then(|| Self { blocks, acts: acts(blocks, far_steps) })
    }

    /// The number of steps between nodes.
    pub fn far_steps(&self) -> usize {
        self.acts.iter().filter(|act| matches!(act, LaneAct::Post { block: 0, .. })).count()
    }
}

/// Rounds down to whole segments: a few bytes more would cost an extra message per block (measured at 10 Gbit/s, in 16 MiB: 60
/// and 36 ms).
fn whole_segments(size_bytes: usize, segment_bytes: usize) -> usize {
    if size_bytes < segment_bytes { size_bytes } else { size_bytes - size_bytes % segment_bytes }
}

fn acts(blocks: usize, far_steps: usize) -> Vec<LaneAct> {
    let mut acts = Vec::with_capacity(2 * blocks * (1 + far_steps));
    for tick in 0..=blocks + DEPTH * far_steps {
        // The block that is this many ticks behind.
        let block = |behind: usize| tick.checked_sub(behind).filter(|&block| block < blocks);
        let steps = || (0..far_steps).rev();
        let completing = |step| Some(LaneAct::Complete { step, block: block(1 + DEPTH * (step + 1))? });
        let posting = |step| Some(LaneAct::Post { step, block: block(1 + DEPTH * step)? });
        acts.extend(steps().filter_map(completing));
        acts.extend(steps().filter_map(posting));
        acts.extend(block(0).map(|block| LaneAct::Inward { block }));
        acts.extend(block(1 + DEPTH * far_steps).map(|block| LaneAct::Outward { block }));
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_and_one_step_by_the_clock() {
        use LaneAct::{Complete, Inward, Outward, Post};
        let expected = [
            Inward { block: 0 },
            Post { step: 0, block: 0 },
            Inward { block: 1 },
            Post { step: 0, block: 1 },
            Complete { step: 0, block: 0 },
            Outward { block: 0 },
            Complete { step: 0, block: 1 },
            Outward { block: 1 },
        ];
        assert_eq!(acts(2, 1), expected);
    }

    #[test]
    fn a_block_is_whole_segments_between_the_bounds() {
        let blocks = |chunk_bytes, segment| Timetable::new(chunk_bytes, segment, 2).map(|table| table.blocks);
        assert_eq!(blocks(32 << 10, 1), None);
        assert_eq!(blocks((32 << 10) + 1, 1), Some(2));
        assert_eq!(blocks(8 << 20, 1), Some(32));
        assert_eq!(blocks(64 << 20, 1), Some(64));
        // 262 144 bytes fit four segments of 65 280.
        assert_eq!(blocks(8 << 20, 65_280), Some(33));
    }
}
