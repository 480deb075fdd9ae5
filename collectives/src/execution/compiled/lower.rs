//! The translation of plans to programs.

use super::{CompiledPlan, Execution};
use crate::plan::Plan;
use crate::program::{Instruction, Part, Place, Program};
use crate::world::Rank;

mod eager;
mod passes;
pub(super) mod pipelined;

impl CompiledPlan {
    /// Returns the program of a rank with this plan, of the same algorithm for the same operation.
    pub(crate) fn lowered(&self, (rank, plan): (Rank, &Plan), execution: Execution) -> Program {
        let chunk_count = plan.chunk_count();
        let in_blocks = |blocks, instructions| Program { chunk_count, blocks, rounds: blocks, instructions };
        match execution {
            Execution::Eager => in_blocks(1, eager::lower(plan, rank)),
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
