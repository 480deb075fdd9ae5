//! The translation of executions to programs.

use std::collections::VecDeque;

use super::{Incoming, Instruction, Outgoing, Part, Program};
use crate::direct::Direct;
use crate::execution::{CompiledPlan, Execution, Half, LaneAct, Move, Moves, Timetable};
use crate::plan::{Phase, Plan};
use crate::schedule::{Chunks, Combine, Receive, SENDS_AHEAD, Send, Source};
use crate::world::Rank;

/// Messages between nodes are buffered by the sender, without a limit.
const UNLIMITED: usize = usize::MAX;

impl Program {
    /// Lowers the execution of a rank. A vendor's collective becomes the steps of its phase.
    pub fn lower(compiled: &CompiledPlan, execution: &Execution) -> Self {
        Self::with_owners(compiled, execution, |_| execution)
    }

    /// Lowers a rank's execution among those of all ranks.
    pub(super) fn lower_among(compiled: &CompiledPlan, executions: &[Execution]) -> Self {
        Self::with_owners(compiled, &executions[compiled.rank()], |owner| &executions[owner])
    }

    /// Lowers the execution of a rank. In a pass, the owner of a buffer decides which part of it another rank finds, by the execution of the owner.
    fn with_owners<'a>(
        compiled: &CompiledPlan,
        execution: &'a Execution,
        of_owner: impl Fn(Rank) -> &'a Execution,
    ) -> Self {
        let (plan, rank) = (compiled.plan(), compiled.rank());
        let direct_of = |owner: Rank| match of_owner(owner) {
            Execution::SinglePass { direct, .. } => Some(&**direct),
            _ => None,
        };
        let (chunk_count, blocks) = match execution {
            // In a swap, two ranks share a block.
            Execution::Moves(moves) => (compiled.ranks(), 2 * moves.blocks),
            _ => (plan.chunk_count(), execution.blocks()),
        };
        let instructions = match execution {
            Execution::Eager(steps) => steps.iter().map(|step| of_half(step.half)).collect(),
            Execution::Messages { blocks, .. } => {
                (0..*blocks).flat_map(|block| of_block(plan, block)).collect()
            }
            Execution::SinglePass { direct, blocks } => {
                (0..*blocks).flat_map(|block| of_pass(rank, direct, &direct_of, block)).collect()
            }
            Execution::Moves(moves) => of_moves(rank, moves),
            Execution::Lanes(timetable) => of_lanes(plan, timetable),
        };
        Self { chunk_count, blocks, instructions }
    }
}

fn of_half(half: Half) -> Instruction {
    let part = |chunks| Part { chunks, block: 0 };
    match half {
        Half::Send { to, chunks } => {
            let outgoing = Outgoing { to, part: part(chunks), source: Source::Current };
            Instruction::Send { outgoing, credits: SENDS_AHEAD }
        }
        Half::Receive { from, chunks, combine } => {
            Instruction::Receive(Incoming { from, part: part(chunks), combine })
        }
        Half::Original { from, to, combine } => {
            Instruction::Original { from: part(from), to: part(to), combine }
        }
    }
}

/// All steps of a block, phase by phase.
fn of_block(plan: &Plan, block: usize) -> impl Iterator<Item = Instruction> {
    plan.phases().iter().flat_map(move |phase| {
        let exchange = move |(send, receive): (Option<Send>, Option<Receive>)| {
            Instruction::Exchange(
                send.map(|send| sent(phase, send, block)),
                receive.map(|receive| received(phase, receive, block)),
            )
        };
        phase.schedule.steps().iter().map(move |step| exchange((step.send, step.receive)))
    })
}

fn sent(phase: &Phase, send: Send, block: usize) -> Outgoing {
    let part = Part { chunks: send.chunks, block };
    Outgoing { to: phase.group.member(send.to), part, source: send.source }
}

fn received(phase: &Phase, receive: Receive, block: usize) -> Incoming {
    let part = Part { chunks: receive.chunks, block };
    Incoming { from: phase.group.member(receive.from), part, combine: receive.combine }
}

/// One pass: each rank works on its own part of all buffers.
fn of_pass<'a>(
    rank: Rank,
    direct: &Direct,
    direct_of: &impl Fn(Rank) -> Option<&'a Direct>,
    block: usize,
) -> Vec<Instruction> {
    let part = |direct: &Direct| Part { chunks: direct.owned[rank], block };
    let own = part(direct);
    let theirs = |other: Rank| direct_of(other).map_or(own, part);
    let reads = direct.from.iter().map(|&of| Instruction::Read {
        of,
        theirs: theirs(of),
        own,
        combine: Combine::Reduce,
    });
    let writes = direct.from.iter().map(|&to| Instruction::Write { to, theirs: theirs(to), own });
    std::iter::once(Instruction::Sync).chain(reads).chain(writes).chain([Instruction::Sync]).collect()
}

fn of_moves(rank: Rank, Moves { blocks, moves, .. }: &Moves) -> Vec<Instruction> {
    let mut instructions = Vec::new();
    for block in 0..*blocks {
        instructions.push(Instruction::Sync);
        for one in moves {
            for half in 0..2 {
                let part = |of: Rank| Part { chunks: Chunks::one(of), block: 2 * block + half };
                let own = part(rank);
                instructions.extend(match *one {
                    Move::Take { from } => {
                        Some(Instruction::Read { of: from, theirs: own, own, combine: Combine::Replace })
                    }
                    Move::Give { to } => Some(Instruction::Write { to, theirs: own, own }),
                    // Each of the two ranks moves one half.
                    Move::Swap { with } => ((half == 0) == (rank < with)).then(|| Instruction::Swap {
                        with,
                        theirs: own,
                        own: part(with),
                    }),
                });
            }
        }
        instructions.push(Instruction::Sync);
    }
    instructions
}

fn of_lanes(plan: &Plan, timetable: &Timetable) -> Vec<Instruction> {
    let mut instructions = Vec::new();
    // Posted exchanges, oldest first.
    let mut posted = VecDeque::new();
    for act in &timetable.acts {
        match *act {
            LaneAct::Post { step, block } => {
                for phase in plan.phases().iter().filter(|phase| !phase.is_in_node()) {
                    let (sends, receives) = each_chunk(phase, step, block);
                    for (send, receive) in sends.into_iter().zip(receives) {
                        instructions.push(Instruction::Send { outgoing: send, credits: UNLIMITED });
                        posted.push_back((step, block, receive));
                    }
                }
            }
            LaneAct::Complete { step, block } => {
                while let Some((.., receive)) = posted.pop_front_if(|(of, at, _)| (*of, *at) == (step, block))
                {
                    instructions.push(Instruction::Receive(receive));
                }
            }
            LaneAct::Inward { block } => instructions.extend(in_node(plan, true, block)),
            LaneAct::Outward { block } => instructions.extend(in_node(plan, false, block)),
        }
    }
    instructions
}

/// All steps of a block in the node, chunk by chunk.
fn in_node(plan: &Plan, inward: bool, block: usize) -> Vec<Instruction> {
    let is_now = |phase: &&Phase| phase.vendor.as_ref().is_some_and(|call| call.is_inward() == inward);
    let mut instructions = Vec::new();
    for phase in plan.phases().iter().filter(is_now) {
        for step in 0..phase.schedule.steps().len() {
            let (sends, receives) = each_chunk(phase, step, block);
            let exchange =
                |at: usize| Instruction::Exchange(sends.get(at).copied(), receives.get(at).copied());
            instructions.extend((0..sends.len().max(receives.len())).map(exchange));
        }
    }
    instructions
}

/// Returns the sends and receives of one block in a step of a phase, one per chunk. Both are empty if there is no such step.
fn each_chunk(phase: &Phase, step: usize, block: usize) -> (Vec<Outgoing>, Vec<Incoming>) {
    let step = phase.schedule.steps().get(step).copied().unwrap_or_default();
    let each = |chunks: Chunks| (chunks.start..chunks.end).map(Chunks::one);
    let sends = step
        .send
        .into_iter()
        .flat_map(|send| each(send.chunks).map(move |chunks| sent(phase, Send { chunks, ..send }, block)));
    let receives = step.receive.into_iter().flat_map(|receive| {
        each(receive.chunks).map(move |chunks| received(phase, Receive { chunks, ..receive }, block))
    });
    (sends.collect(), receives.collect())
}
