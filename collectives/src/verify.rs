//! The proof: runs all ranks of a collective over symbols.
//!
//! A value is the set of its contributions, with a hash of the order in which they were added. So the run detects what
//! numbers would hide: a contribution that is missing or doubled, or a result that two ranks added in different orders, and
//! that floating point would make different.

use std::ops::Range;

use crate::defect::Defect;
use crate::interpret::{self, Event, Outcome};
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::{Combine, Schedule, Source, Step};
use crate::world::Rank;

pub(crate) mod symbols;

use symbols::{Symbol, Symbols};

/// Finds all defects of the plans of all ranks (rank 0's first) for an operation; none if they are correct.
///
/// It proves that every message has two ends of the same length; that nothing deadlocks, even if no message is ever
/// buffered; that every rank with a result has each contribution to it exactly once; and that all ranks with a sum added it
/// in the same order.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, verify};
///
/// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(7)).unwrap();
/// assert_eq!(verify(&plans, Operation::AllReduce), vec![]);
/// ```
pub fn verify(plans: &[Plan], operation: Operation) -> Vec<Defect> {
    let schedules: Vec<_> = plans.iter().map(Plan::flattened).collect();
    verify_schedules(&schedules, operation)
}

/// As [`verify()`], for schedules of the ranks of one world.
pub fn verify_schedules(schedules: &[Schedule], operation: Operation) -> Vec<Defect> {
    let defects = malformed(schedules, operation);
    if !defects.is_empty() {
        return defects;
    }
    let ranks = schedules.len();
    let chunk_count = schedules.first().map_or(1, Schedule::chunk_count);
    let (mut symbols, inputs) = Symbols::inputs(operation, ranks, chunk_count);
    let outcome = interpret::run(schedules, inputs, &mut symbols);

    let mut defects = std::mem::take(&mut symbols.defects);
    defects.extend(stuck(schedules, &outcome));
    if defects.is_empty() {
        defects.extend(wrong_results(&outcome.buffers, &symbols, operation));
    }
    defects
}

/// Defects of single steps: ranks and chunks that do not exist, steps that race with themselves.
fn malformed(schedules: &[Schedule], operation: Operation) -> Vec<Defect> {
    let mut defects = Vec::new();
    let in_parts = matches!(
        operation,
        Operation::ReduceScatter
            | Operation::AllGather
            | Operation::Gather { .. }
            | Operation::Scatter { .. }
            | Operation::AllToAll
    );
    let expected =
        if in_parts { schedules.len() } else { schedules.first().map_or(1, Schedule::chunk_count) };
    for (rank, schedule) in schedules.iter().enumerate() {
        let found = schedule.chunk_count();
        if found != expected {
            defects.push(Defect::ChunkCount { rank, found, expected });
        }
        for (number, step) in schedule.steps().iter().enumerate() {
            malformed_step(rank, number, step, schedules.len(), expected, &mut defects);
        }
    }
    defects
}

fn malformed_step(
    rank: Rank,
    number: usize,
    step: &Step,
    ranks: usize,
    chunk_count: usize,
    defects: &mut Vec<Defect>,
) {
    let ends = [
        step.send.map(|send| (send.to, send.chunks)),
        step.receive.map(|receive| (receive.from, receive.chunks)),
    ];
    for (named, chunks) in ends.into_iter().flatten() {
        if named >= ranks {
            defects.push(Defect::NoSuchRank { rank, step: number, named });
        }
        if chunks.start > chunks.end || chunks.end > chunk_count {
            defects.push(Defect::NoSuchChunk { rank, step: number, chunks, chunk_count });
        }
    }
    if let (Some(send), Some(receive)) = (step.send, step.receive)
        && send.source == Source::Current
        && receive.combine == Combine::Replace
        && send.chunks.overlaps(receive.chunks)
    {
        defects.push(Defect::Overlap { rank, step: number, sent: send.chunks, replaced: receive.chunks });
    }
}

/// The ranks that wait at the end, and whether the other rank has finished.
fn stuck<V>(schedules: &[Schedule], outcome: &Outcome<V>) -> Vec<Defect> {
    if !outcome.mismatched.is_empty() {
        let defect = |event: &Event| Defect::LengthMismatch {
            from: event.from,
            to: event.rank,
            step: event.step,
            sent: event.sent,
            received: event.received,
        };
        return outcome.mismatched.iter().map(defect).collect();
    }
    let waits = |rank| outcome.waiting.iter().any(|&(waiting, _)| waiting == rank);
    let defect = |&(rank, number): &(Rank, usize)| {
        let step = schedules[rank].steps()[number];
        let others = [step.send.map(|send| send.to), step.receive.map(|receive| receive.from)];
        // If one of two has finished, that is the cause.
        let other = others.into_iter().flatten().min_by_key(|&other| waits(other));
        let other = other.expect("a step that waits has another end");
        if waits(other) {
            Defect::Deadlock { rank, step: number, other }
        } else {
            Defect::Unmatched { rank, step: number, other }
        }
    };
    outcome.waiting.iter().map(defect).collect()
}

/// Compares the final values of every rank with the operation's result.
fn wrong_results(buffers: &[Vec<Symbol>], symbols: &Symbols, operation: Operation) -> Vec<Defect> {
    let ranks = buffers.len();
    let mut defects = Vec::new();
    for (rank, buffer) in buffers.iter().enumerate() {
        for (chunk, &symbol) in buffer.iter().enumerate() {
            let Some((origin, expected)) = promise(operation, ranks, rank, chunk) else { continue };
            let missing = symbols.missing(symbol, &expected);
            defects.extend(missing.map(|contributor| Defect::Missing { rank, chunk, contributor }));
            if symbols.chunk(symbol) != origin || symbols.has_foreign(symbol, &expected) {
                defects.push(Defect::Foreign { rank, chunk });
            }
        }
    }
    if defects.is_empty() && operation == Operation::AllReduce {
        for (chunk, &first) in buffers.first().into_iter().flatten().enumerate() {
            let order = |rank: Rank| symbols.order(buffers[rank][chunk]);
            let other = (1..ranks).find(|&rank| order(rank) != symbols.order(first));
            defects.extend(other.map(|other| Defect::DifferentOrder { chunk, one: 0, other }));
        }
    }
    defects
}

/// The required final value of a rank's chunk: its chunk, and the contributing ranks.
pub(crate) fn promise(
    operation: Operation,
    ranks: usize,
    rank: Rank,
    chunk: usize,
) -> Option<(usize, Range<Rank>)> {
    let of = |rank: Rank| rank..rank + 1;
    match operation {
        Operation::AllReduce => Some((chunk, 0..ranks)),
        Operation::ReduceScatter => (chunk == rank).then_some((chunk, 0..ranks)),
        Operation::AllGather => Some((chunk, of(chunk))),
        Operation::Broadcast { root } => Some((chunk, of(root))),
        Operation::Reduce { root } => (rank == root).then_some((chunk, 0..ranks)),
        Operation::Gather { root } => (rank == root).then(|| (chunk, of(chunk))),
        Operation::Scatter { root } => (chunk == rank || rank == root).then(|| (chunk, of(root))),
        Operation::AllToAll => Some((rank, of(chunk))),
        Operation::Scan => Some((chunk, 0..rank + 1)),
        Operation::ExclusiveScan => (rank > 0).then_some((chunk, 0..rank)),
    }
}
