//! The translation of plans to programs.

use super::{CompiledPlan, Execution};
use crate::plan::{Phase, Plan};
use crate::program::{Incoming, Instruction, Outgoing, Part, Place, Program};
use crate::schedule::{Receive, Send, Step};
use crate::world::Rank;

mod eager;
pub(super) mod lanes;
mod passes;

impl CompiledPlan {
    /// Returns the program of a rank with this plan, of the same algorithm for the same operation.
    pub(crate) fn lowered(&self, (rank, plan): (Rank, &Plan), execution: Execution) -> Program {
        let chunk_count = plan.chunk_count();
        let in_blocks = |blocks, instructions| Program { chunk_count, blocks, rounds: blocks, instructions };
        match execution {
            Execution::Eager => in_blocks(1, eager::lower(plan, rank)),
            Execution::Messages { blocks } => in_blocks(blocks, step_by_step(plan, false)),
            Execution::ByVendor => in_blocks(1, step_by_step(plan, true)),
            Execution::SinglePass { blocks } => {
                let owned = self.owned().expect("the execution of a direct all-reduce");
                in_blocks(blocks, passes::reduction((rank, plan), owned))
            }
            Execution::Moves { blocks } => passes::moves(self.operation, (rank, self.ranks), blocks),
            Execution::Lanes { blocks, far_steps } => {
                Program { rounds: 1, ..in_blocks(blocks, lanes::lower(plan, blocks, far_steps)) }
            }
        }
    }
}

/// Returns all steps of the first block, phase by phase.
fn step_by_step(plan: &Plan, by_vendor: bool) -> Vec<(Place, Instruction)> {
    let steps = plan.phases().iter().map(|phase| phase.schedule.steps().len());
    let mut instructions = Vec::with_capacity(steps.sum());
    for (number, phase) in plan.phases().iter().enumerate() {
        let place = |step| Place { name: phase.name, phase: number, step };
        let steps = phase.schedule.steps();
        let vendor = Instruction::Vendor { phase: number, steps: steps.len() };
        instructions.extend(phase.vendor.as_ref().filter(|_| by_vendor).map(|_| (place(0), vendor)));
        let steps = steps.iter().enumerate().map(|(step, halves)| (place(step), exchange(phase, halves)));
        instructions
            .extend(steps.filter(|(_, instruction)| *instruction != Instruction::Exchange(None, None)));
    }
    instructions
}

fn exchange(phase: &Phase, step: &Step) -> Instruction {
    let send = step.send.map(|send| sent(phase, send, 0));
    Instruction::Exchange(send, step.receive.map(|receive| received(phase, receive, 0)))
}

fn sent(phase: &Phase, send: Send, block: usize) -> Outgoing {
    let part = Part { chunks: send.chunks, block };
    Outgoing { to: phase.group.member(send.to), part, source: send.source }
}

fn received(phase: &Phase, receive: Receive, block: usize) -> Incoming {
    let part = Part { chunks: receive.chunks, block };
    Incoming { from: phase.group.member(receive.from), part, combine: receive.combine }
}
