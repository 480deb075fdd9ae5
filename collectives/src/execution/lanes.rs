//! A plan of levels in lanes: while one block of an array is between nodes, others are reduced and spread inside of them.
//!
//! A wire is idle in every moment in which nothing is on its way, so a step between nodes is begun long before it is needed, and
//! ended long after. All ranks keep to one timetable. In tick t
//! - what has been under way for [`DEPTH`] ticks is taken in;
//! - step s between nodes begins, of the block t − 1 − s · `DEPTH`, for every s;
//! - block t is reduced in the node;
//! - the block that has all its steps between nodes behind it is spread in the node.
//!
//! So a rank waits in tick t only for what other ranks begin before tick t, or do inside of the node in tick t, and those do not
//! wait for this one: nothing can come to wait for itself.

use std::ops::RangeInclusive;

/// How many blocks of each step are between nodes at a time.
pub(crate) const DEPTH: usize = 2;
/// How much of a chunk is in a block, at least and at most; between the two, there are [`BLOCKS`]. The wire is idle while the first block
/// is reduced and the last one is spread, so they should be many; but for each, ranks of a node wait for each other, which takes
/// long where others want their cores.
const BLOCK_BYTES: RangeInclusive<usize> = 32 << 10..=1 << 20;
const BLOCKS: usize = 32;

/// What a rank does when, in lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timetable {
    /// How many blocks there are.
    pub blocks: usize,
    /// What is done, one after the other.
    pub acts: Vec<LaneAct>,
}

/// Something that a rank does to one block of all chunks that it has anything to do with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneAct {
    /// A step between nodes begins, in all phases there: what is sent leaves, and nothing is waited for.
    Post {
        /// The number of the step, in each of those phases.
        step: usize,
        /// The block.
        block: usize,
    },
    /// What such a step receives is waited for, and put in place or reduced.
    Complete {
        /// The number of the step.
        step: usize,
        /// The block.
        block: usize,
    },
    /// The phases in the node that bring results together.
    Inward {
        /// The block.
        block: usize,
    },
    /// The phases in the node that spread them.
    Outward {
        /// The block.
        block: usize,
    },
}

impl Timetable {
    /// For chunks of this size, links that send so much at a time, and so many steps between nodes; `None` if it is all one block.
    pub(super) fn new(chunk_bytes: usize, segment_bytes: usize, far_steps: usize) -> Option<Self> {
        let fair = (chunk_bytes / BLOCKS).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
        let blocks = chunk_bytes.div_ceil(whole_segments(fair, segment_bytes));
        (blocks > 1).then(|| Self { blocks, acts: acts(blocks, far_steps) })
    }

    /// How many steps there are between nodes.
    pub fn far_steps(&self) -> usize {
        self.acts.iter().filter(|act| matches!(act, LaneAct::Post { block: 0, .. })).count()
    }
}

/// As much as fits whole segments: a few bytes more would be a message more for each block (measured at 10 Gbit/s, in 16 MiB: 60 and
/// 36 ms).
fn whole_segments(size_bytes: usize, segment_bytes: usize) -> usize {
    if size_bytes < segment_bytes { size_bytes } else { size_bytes - size_bytes % segment_bytes }
}

fn acts(blocks: usize, far_steps: usize) -> Vec<LaneAct> {
    let mut acts = Vec::with_capacity(2 * blocks * (1 + far_steps));
    for tick in 0..=blocks + DEPTH * far_steps {
        // The block that is so many ticks behind.
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
