//! The translation of plans to programs.

use super::{CompiledPlan, Execution};
use crate::plan::Plan;
use crate::program::{self, Incoming, Instruction, Outgoing, Place, Program};
use crate::schedule::Source;
use crate::world::Rank;

mod passes;
pub(super) mod pipelined;

impl CompiledPlan {
    /// Returns the program of a rank with this plan, of the same algorithm for the same operation.
    pub(crate) fn lowered(&self, (rank, plan): (Rank, &Plan), execution: Execution) -> Program {
        let chunk_count = plan.chunk_count();
        let in_blocks = |blocks, instructions| Program { chunk_count, blocks, rounds: blocks, instructions };
        match execution {
            Execution::Eager => in_blocks(1, eager(plan, rank)),
            Execution::Messages { blocks } => in_blocks(blocks, step_by_step(plan)),
            Execution::ByVendor => in_blocks(1, with_vendors(plan)),
            Execution::SinglePass { blocks } => {
                let owned = self.flow.as_ref().and_then(|flow| flow.owned.as_deref());
                let owned = owned.expect("the execution of a direct reduction");
                in_blocks(blocks, passes::reduction(self.operation, (rank, plan), owned))
            }
            Execution::Moves { blocks } => passes::moves(self.operation, (rank, self.ranks), blocks),
            Execution::Pipelined { blocks, far_steps } => {
                Program { rounds: 1, ..in_blocks(blocks, pipelined::lower(plan, blocks, far_steps)) }
            }
        }
    }
}

/// Returns the halves of a plan's steps, for short calls among ranks that share memory, where every message is eager: each send is as early as its
/// data allows ([`Schedule::earliest_sends`](crate::Schedule::earliest_sends)). A step of the rank with itself stays whole.
fn eager(plan: &Plan, rank: Rank) -> Vec<(Place, Instruction)> {
    let steps: Vec<_> = program::steps(plan).collect();
    let mut sends: Vec<_> = plan.flattened().earliest_sends().into_iter().zip(&steps).collect();
    sends.sort_by_key(|(earliest, _)| *earliest);
    let mut sends = sends.into_iter().peekable();
    let mut written = vec![false; plan.chunk_count()];
    let mut instructions = Vec::with_capacity(2 * steps.len());
    for (number, &(place, send, receive)) in steps.iter().enumerate() {
        while let Some((_, &(place, send, _))) = sends.next_if(|(earliest, _)| *earliest <= number) {
            instructions.extend(send.filter(|send| send.to != rank).map(|send| {
                // Until a chunk is written, its current contents are the original ones, which need no copy.
                let is_written = written[send.part.chunks.range()].contains(&true);
                let source = if is_written { send.source } else { Source::Current };
                (place, Instruction::Send(Outgoing { source, ..send }))
            }));
        }
        if let Some(Incoming { part, .. }) = receive {
            let to_self = send.filter(|send| send.to == rank);
            instructions.push((place, Instruction::Exchange(to_self, receive)));
            written[part.chunks.range()].fill(true);
        }
    }
    instructions
}

/// Returns all steps of the first block that send or receive, phase by phase.
fn step_by_step(plan: &Plan) -> Vec<(Place, Instruction)> {
    let mut instructions = Program::of_plan(plan).instructions;
    instructions.retain(|(_, instruction)| *instruction != Instruction::Exchange(None, None));
    instructions
}

/// Returns the same steps, with the vendors' calls that may replace those of a phase.
fn with_vendors(plan: &Plan) -> Vec<(Place, Instruction)> {
    let mut instructions = step_by_step(plan);
    for (number, phase) in plan.phases().iter().enumerate().filter(|(_, phase)| phase.vendor.is_some()) {
        let begin_of = |number| instructions.partition_point(|(place, _)| place.phase < number);
        let (begin, end) = (begin_of(number), begin_of(number + 1));
        let vendor = Instruction::Vendor { phase: number, steps: end - begin };
        instructions.insert(begin, (Place { name: phase.name, phase: number, step: 0 }, vendor));
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Chunks, Schedule, Step};
    use crate::world::Group;

    #[test]
    fn original_contents_are_sent_even_after_their_chunk_is_written() {
        let [one, other] = [0, 1].map(Chunks::one);
        let steps = [
            Step::new().reduce(1, one),
            Step::new().send(1, one),
            // Sends to a rank stay in order, so these follow the addition.
            Step::new().send_original(1, one),
            Step::new().send_original(1, other),
        ];
        let plan = Plan::single("test", Group::new(vec![0, 1]), Schedule::new(2, steps));
        let instructions = eager(&plan, 0);
        let sources = instructions.iter().filter_map(|(_, instruction)| match instruction {
            Instruction::Send(send) => Some(send.source),
            _ => None,
        });
        assert!(sources.eq([Source::Current, Source::Original, Source::Current]), "{instructions:?}");
    }
}
