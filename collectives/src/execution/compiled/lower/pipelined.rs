//! Multi-level plans, pipelined over blocks: while one block of an array is between nodes, others are reduced and
//! distributed inside them. (Luo et al., "HAN: a hierarchical autotuned collective communication framework", IEEE CLUSTER 2020.)
//!
//! A network link idles whenever no message is in flight, so a step between nodes is posted long before its result is needed, and
//! completed long after. All ranks follow the same timetable. In tick t
//! - the steps that have been in flight for [`DEPTH`] ticks are completed;
//! - step s between nodes is posted, for block t − 1 − s · `DEPTH`, for every s;
//! - block t is reduced in the node;
//! - the block that has completed all its steps between nodes is distributed in the node.
//!
//! In tick t, a rank thus waits only for messages that other ranks post before tick t, and for their intra-node steps of tick t. These never wait for
//! this rank, so there is no deadlock.

use std::ops::RangeInclusive;

use crate::plan::{Phase, Plan};
use crate::program::{Incoming, Instruction, Outgoing, Place, received, sent};
use crate::schedule::{Chunks, Receive, Send};

/// The number of blocks in flight between nodes, for each step.
pub(crate) const DEPTH: usize = 2;
/// The minimum and maximum part of a chunk in a block. Between them, there are [`BLOCKS`] blocks. The network idles while the first block is reduced
/// and the last one distributed, so blocks should be many. But the ranks of a node synchronise for each, which takes long when oversubscribed.
const BLOCK_BYTES: RangeInclusive<usize> = 32 << 10..=1 << 20;
const BLOCKS: usize = 32;

/// Returns the number of blocks for this chunk size and segment size; `None` if everything fits one block.
pub(crate) fn blocks(chunk_bytes: usize, segment_bytes: usize) -> Option<usize> {
    let fair = (chunk_bytes / BLOCKS).clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
    let blocks = chunk_bytes.div_ceil(whole_segments(fair, segment_bytes));
    (blocks > 1).then_some(blocks)
}

/// Rounds down to whole segments, if there are any: a few bytes more would cost an extra message per block (measured at 10 Gbit/s, in 16 MiB: 60
/// and 36 ms).
fn whole_segments(size_bytes: usize, segment_bytes: usize) -> usize {
    let rest = size_bytes.checked_rem(segment_bytes).unwrap_or(0);
    if size_bytes < segment_bytes { size_bytes } else { size_bytes - rest }
}

/// Lowers a plan with `far_steps` steps between nodes, in `blocks` blocks.
pub(super) fn lower(plan: &Plan, blocks: usize, far_steps: usize) -> Vec<(Place, Instruction)> {
    let phases = || plan.phases().iter().enumerate();
    let far = || phases().filter(|(_, phase)| !phase.is_in_node());
    let near = |inward| {
        let is_now =
            move |phase: &Phase| phase.vendor.as_ref().is_some_and(|call| call.operation.reduces() == inward);
        phases().filter(move |(_, phase)| is_now(phase))
    };
    let mut instructions = Vec::new();
    for tick in 0..=blocks + DEPTH * far_steps {
        // The block that is this many ticks behind.
        let block = |behind: usize| tick.checked_sub(behind).filter(|&block| block < blocks);
        let steps = || (0..far_steps).rev();
        for (step, block) in steps().filter_map(|step| Some((step, block(1 + DEPTH * (step + 1))?))) {
            let completed =
                far().flat_map(|phase| by_chunks(phase, step, block, |_, _| Instruction::Complete));
            instructions.extend(completed);
        }
        for (step, block) in steps().filter_map(|step| Some((step, block(1 + DEPTH * step)?))) {
            instructions.extend(far().flat_map(|phase| by_chunks(phase, step, block, Instruction::Post)));
        }
        for (inward, behind) in [(true, 0), (false, 1 + DEPTH * far_steps)] {
            let Some(block) = block(behind) else { continue };
            for phase in near(inward) {
                let steps = 0..phase.1.schedule.steps().len();
                let exchanges = steps.flat_map(|step| by_chunks(phase, step, block, Instruction::Exchange));
                instructions.extend(exchanges);
            }
        }
    }
    instructions
}

/// Returns the instructions for the sends and receives of one block in a step of a phase, chunk by chunk, since a block is a part of each
/// chunk; empty if there is no such step.
fn by_chunks(
    (number, phase): (usize, &Phase),
    step: usize,
    block: usize,
    instruction: fn(Option<Outgoing>, Option<Incoming>) -> Instruction,
) -> Vec<(Place, Instruction)> {
    let place = Place { name: phase.name, phase: number, step };
    let step = phase.schedule.steps().get(step).copied().unwrap_or_default();
    let each = |chunks: Chunks| chunks.range().map(Chunks::one);
    let send = |half: Send| each(half.chunks).map(move |chunks| sent(phase, Send { chunks, ..half }, block));
    let receive = |half: Receive| {
        each(half.chunks).map(move |chunks| received(phase, Receive { chunks, ..half }, block))
    };
    let mut sends = step.send.into_iter().flat_map(send);
    let mut receives = step.receive.into_iter().flat_map(receive);
    let instructions = std::iter::from_fn(|| match (sends.next(), receives.next()) {
        (None, None) => None,
        (send, receive) => Some((place, instruction(send, receive))),
    });
    instructions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Operation, Topology};

    #[test]
    fn timetable_of_two_blocks_and_one_step() {
        let plan =
            Algorithm::HierarchicalCopy.plan(Operation::AllReduce, &Topology::uniform(2, 2), 0).unwrap();
        let instructions = lower(&plan, 2, 1).into_iter().map(|(_, instruction)| match instruction {
            Instruction::Post(Some(outgoing), _) => ("post", outgoing.part.block),
            Instruction::Complete => ("complete", 0),
            Instruction::Exchange(None, Some(incoming)) => ("reduce", incoming.part.block),
            Instruction::Exchange(Some(outgoing), None) => ("distribute", outgoing.part.block),
            other => panic!("{other:?}"),
        });
        let expected = [
            ("reduce", 0),
            ("post", 0),
            ("reduce", 1),
            ("post", 1),
            ("complete", 0),
            ("distribute", 0),
            ("complete", 0),
            ("distribute", 1),
        ];
        let mut instructions: Vec<_> = instructions.collect();
        // Each instruction occurs once for each chunk.
        instructions.dedup();
        assert_eq!(instructions, expected);
    }

    #[test]
    fn block_consists_of_whole_segments_within_the_bounds() {
        assert_eq!(blocks(32 << 10, 1), None);
        assert_eq!(blocks((32 << 10) + 1, 1), Some(2));
        assert_eq!(blocks(8 << 20, 1), Some(32));
        assert_eq!(blocks(64 << 20, 1), Some(64));
        // 262 144 bytes fit four segments of 65 280.
        assert_eq!(blocks(8 << 20, 65_280), Some(33));
    }
}
