//! Executions in the form that the verifier simulates: the sequence of actions of each rank on parts of all buffers.

use std::collections::VecDeque;

use super::{Execution, Half, LaneAct, Move, Moves, Timetable};
use crate::direct::Direct;
use crate::plan::{Phase, Plan};
use crate::schedule::{Chunks, Combine, Receive, SENDS_AHEAD, Send, Source};
use crate::world::Rank;

/// One block of some chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) chunks: Chunks,
    pub(super) block: usize,
}

/// An outgoing part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) to: Rank,
    pub(super) part: Part,
    pub(super) source: Source,
}

/// An incoming part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    pub(super) from: Rank,
    pub(super) part: Part,
    pub(super) combine: Combine,
}

/// One action of a rank.
#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    /// Both halves of a step, then a wait for the other ranks: unbuffered.
    Exchange(Option<Sent>, Option<Received>),
    /// A buffered send. It blocks while this many messages to the same rank are not received.
    Send(Sent, usize),
    /// A blocking receive.
    Receive(Received),
    /// Stores or reduces a part of the rank's original input into another part.
    Original { from: Part, to: Part, combine: Combine },
    /// Waits until all ranks have reached this point.
    Meet,
    /// In a pass: stores or reduces another rank's `theirs` into this rank's `own`.
    Read { of: Rank, theirs: Part, own: Part, combine: Combine },
    /// In a pass: stores this rank's `own` into another's `theirs`.
    Write { to: Rank, theirs: Part, own: Part },
    /// In a pass: swaps this rank's `own` and another's `theirs`.
    Swap { with: Rank, theirs: Part, own: Part },
}

/// Messages between nodes are buffered by the sender, without limit.
const ANY_NUMBER: usize = usize::MAX;

/// The number of parts, and of blocks per part, that an execution divides the array into. In a swap, two ranks share a block.
pub(super) fn cut(execution: &Execution, plan: &Plan, ranks: usize) -> (usize, usize) {
    match execution {
        Execution::Moves(moves) => (ranks, 2 * moves.blocks),
        _ => (plan.chunk_count(), execution.blocks()),
    }
}

/// The actions of a rank, given the executions of all ranks.
pub(super) fn acts(rank: Rank, executions: &[Execution], plan: &Plan) -> Vec<Act> {
    match &executions[rank] {
        Execution::Eager(steps) => steps.iter().map(|step| of_half(step.half)).collect(),
        Execution::Messages { blocks, .. } => (0..*blocks).flat_map(|block| of_block(plan, block)).collect(),
        Execution::SinglePass { direct, blocks } => {
            (0..*blocks).flat_map(|block| of_pass(rank, direct, executions, block)).collect()
        }
        Execution::Moves(moves) => of_moves(rank, moves),
        Execution::Lanes(timetable) => of_lanes(plan, timetable),
    }
}

fn of_half(half: Half) -> Act {
    let part = |chunks| Part { chunks, block: 0 };
    match half {
        Half::Send { to, chunks } => {
            Act::Send(Sent { to, part: part(chunks), source: Source::Current }, SENDS_AHEAD)
        }
        Half::Receive { from, chunks, combine } => {
            Act::Receive(Received { from, part: part(chunks), combine })
        }
        Half::Original { from, to, combine } => Act::Original { from: part(from), to: part(to), combine },
    }
}

/// All steps of a block, phase by phase.
fn of_block(plan: &Plan, block: usize) -> impl Iterator<Item = Act> {
    plan.phases().iter().flat_map(move |phase| {
        let act = move |(send, receive): (Option<Send>, Option<Receive>)| {
            Act::Exchange(
                send.map(|send| sent(phase, send, block)),
                receive.map(|receive| received(phase, receive, block)),
            )
        };
        phase.schedule.steps().iter().map(move |step| act((step.send, step.receive)))
    })
}

fn sent(phase: &Phase, send: Send, block: usize) -> Sent {
    let part = Part { chunks: send.chunks, block };
    Sent { to: phase.group.member(send.to), part, source: send.source }
}

fn received(phase: &Phase, receive: Receive, block: usize) -> Received {
    let part = Part { chunks: receive.chunks, block };
    Received { from: phase.group.member(receive.from), part, combine: receive.combine }
}

/// One pass: all ranks open their buffers, each works on its own part of all, and all close them. The owner of a buffer defines
/// where that part is in it.
fn of_pass(rank: Rank, direct: &Direct, executions: &[Execution], block: usize) -> Vec<Act> {
    let own = Part { chunks: direct.owned[rank], block };
    let theirs = |other: Rank| match executions.get(other) {
        Some(Execution::SinglePass { direct, .. }) => Part { chunks: direct.owned[rank], block },
        _ => own,
    };
    let reads =
        direct.from.iter().map(|&of| Act::Read { of, theirs: theirs(of), own, combine: Combine::Reduce });
    let writes = direct.from.iter().map(|&to| Act::Write { to, theirs: theirs(to), own });
    std::iter::once(Act::Meet).chain(reads).chain(writes).chain([Act::Meet]).collect()
}

fn of_moves(rank: Rank, Moves { blocks, moves, .. }: &Moves) -> Vec<Act> {
    let mut acts = Vec::new();
    for block in 0..*blocks {
        acts.push(Act::Meet);
        for one in moves {
            for half in 0..2 {
                let part = |of: Rank| Part { chunks: Chunks::one(of), block: 2 * block + half };
                let own = part(rank);
                acts.extend(match *one {
                    Move::Take { from } => {
                        Some(Act::Read { of: from, theirs: own, own, combine: Combine::Replace })
                    }
                    Move::Give { to } => Some(Act::Write { to, theirs: own, own }),
                    // Each of the two ranks moves one half.
                    Move::Swap { with } => ((half == 0) == (rank < with)).then(|| Act::Swap {
                        with,
                        theirs: own,
                        own: part(with),
                    }),
                });
            }
        }
        acts.push(Act::Meet);
    }
    acts
}

fn of_lanes(plan: &Plan, timetable: &Timetable) -> Vec<Act> {
    let mut acts = Vec::new();
    // Posted exchanges, oldest first.
    let mut posted = VecDeque::new();
    for act in &timetable.acts {
        match *act {
            LaneAct::Post { step, block } => {
                for phase in plan.phases().iter().filter(|phase| !phase.is_in_node()) {
                    let (sends, receives) = each_chunk(phase, step, block);
                    for (send, receive) in sends.into_iter().zip(receives) {
                        acts.push(Act::Send(send, ANY_NUMBER));
                        posted.push_back((step, block, receive));
                    }
                }
            }
            LaneAct::Complete { step, block } => {
                while let Some((.., receive)) = posted.pop_front_if(|(of, at, _)| (*of, *at) == (step, block))
                {
                    acts.push(Act::Receive(receive));
                }
            }
            LaneAct::Inward { block } => acts.extend(in_node(plan, true, block)),
            LaneAct::Outward { block } => acts.extend(in_node(plan, false, block)),
        }
    }
    acts
}

/// All steps of a block in the node, chunk by chunk.
fn in_node(plan: &Plan, inward: bool, block: usize) -> Vec<Act> {
    let is_now = |phase: &&Phase| phase.vendor.as_ref().is_some_and(|call| call.is_inward() == inward);
    let mut acts = Vec::new();
    for phase in plan.phases().iter().filter(is_now) {
        for step in 0..phase.schedule.steps().len() {
            let (sends, receives) = each_chunk(phase, step, block);
            let exchange = |at: usize| Act::Exchange(sends.get(at).copied(), receives.get(at).copied());
            acts.extend((0..sends.len().max(receives.len())).map(exchange));
        }
    }
    acts
}

/// What a step of a phase sends and receives of a block, by chunk; empty if there is no such step.
fn each_chunk(phase: &Phase, step: usize, block: usize) -> (Vec<Sent>, Vec<Received>) {
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

impl Act {
    /// The other ranks that it names, and the parts.
    pub(super) fn names(&self) -> (Vec<Rank>, Vec<Part>) {
        match *self {
            Self::Exchange(send, receive) => {
                let ranks = send.map(|send| send.to).into_iter().chain(receive.map(|receive| receive.from));
                let parts = send.map(|send| send.part).into_iter().chain(receive.map(|receive| receive.part));
                (ranks.collect(), parts.collect())
            }
            Self::Send(send, _) => (vec![send.to], vec![send.part]),
            Self::Receive(receive) => (vec![receive.from], vec![receive.part]),
            Self::Original { from, to, .. } => (Vec::new(), vec![from, to]),
            Self::Meet => (Vec::new(), Vec::new()),
            Self::Read { of: other, theirs, own, .. }
            | Self::Write { to: other, theirs, own }
            | Self::Swap { with: other, theirs, own } => (vec![other], vec![theirs, own]),
        }
    }
}
