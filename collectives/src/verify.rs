//! Verification: runs all ranks of a collective over symbols.
//!
//! A value is the set of its contributions, with a hash of the order in which they were added. So the run detects errors that
//! numbers would hide: a contribution that is missing or doubled, or a result that two ranks added in different orders, which
//! differs in floating point.

use std::ops::Range;

use crate::defect::Defect;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::program::{Interpreter, Part, Program};
use crate::schedule::{Combine, Source, Step};
use crate::world::Rank;

mod programs;
mod symbols;

pub use programs::verify_programs;
use symbols::{Symbol, Symbols};

/// Finds all defects of the plans of all ranks (rank 0's first) for an operation; none if they are correct.
///
/// It checks that every message has two ends of the same length, that no rank deadlocks, even if no message is ever
/// buffered, that every rank with a result has each contribution to it exactly once, and that all ranks with a sum added it
/// in the same order.
///
/// ```
/// use unisono_collectives::{Algorithm, Operation, Topology, verify};
///
/// let plans = Algorithm::Ring.plans(Operation::AllReduce, &Topology::single_node(7)).unwrap();
/// assert_eq!(verify(&plans, Operation::AllReduce), vec![]);
/// ```
pub fn verify(plans: &[Plan], operation: Operation) -> Vec<Defect> {
    let is_in_parts = operation.has_parts() || operation == Operation::AllToAll;
    let chunk_count = plans.first().map_or(1, Plan::chunk_count);
    let expected = if is_in_parts { plans.len() } else { chunk_count };
    let mut defects = Vec::new();
    for (rank, plan) in plans.iter().enumerate() {
        let found = plan.chunk_count();
        if found != expected {
            defects.push(Defect::ChunkCount { rank, found, expected });
        }
        let steps = plan.phases().iter().flat_map(|phase| phase.schedule.steps()).enumerate();
        defects.extend(steps.filter_map(|(number, step)| overlap(rank, number, step)));
    }
    if !defects.is_empty() {
        return defects;
    }
    let programs: Vec<_> = plans.iter().map(Program::of_plan).collect();
    let (symbols, buffers) = match results(&programs, operation, (expected, 1)) {
        Ok(results) => results,
        Err(defects) => return defects,
    };
    let is_sum = operation == Operation::AllReduce;
    for (chunk, &first) in buffers.first().filter(|_| is_sum).into_iter().flatten().enumerate() {
        let order = |rank: Rank| symbols.value(buffers[rank][chunk]).order;
        let other = (1..buffers.len()).find(|&rank| order(rank) != symbols.value(first).order);
        defects.extend(other.map(|other| Defect::DifferentOrder { chunk, one: 0, other }));
    }
    defects
}

/// Returns the defect of a step that replaces chunks that it sends, since the received data would depend on timing.
fn overlap(rank: Rank, step: usize, &Step { send, receive }: &Step) -> Option<Defect> {
    let (send, receive) = send.zip(receive)?;
    let is_race = send.source == Source::Current
        && receive.combine == Combine::Replace
        && send.chunks.overlaps(receive.chunks);
    is_race.then_some(Defect::Overlap { rank, step, sent: send.chunks, replaced: receive.chunks })
}

/// Runs the programs of all ranks on symbols. Returns the values of all ranks at the end, which have the contributions that the operation requires.
fn results(
    programs: &[Program],
    operation: Operation,
    (chunk_count, blocks): (usize, usize),
) -> Result<(Symbols, Vec<Vec<Symbol>>), Vec<Defect>> {
    let malformed = malformed(programs, chunk_count, blocks);
    if !malformed.is_empty() {
        return Err(malformed);
    }
    let (mut symbols, inputs) = Symbols::inputs(operation, programs.len(), chunk_count, blocks);
    let mut interpreter = Interpreter::new(programs, &mut symbols, inputs);
    interpreter.run();
    let Interpreter { buffers, defects: stuck, .. } = interpreter;
    let mut defects = std::mem::take(&mut symbols.defects);
    defects.extend(stuck);
    if defects.is_empty() {
        defects = wrong_results(&buffers, &symbols, operation, blocks);
    }
    if defects.is_empty() { Ok((symbols, buffers)) } else { Err(defects) }
}

/// Returns the defects of instructions that name ranks or parts that do not exist.
fn malformed(programs: &[Program], parts: usize, blocks: usize) -> Vec<Defect> {
    let mut defects = Vec::new();
    let ranks = programs.len();
    for (rank, program) in programs.iter().enumerate() {
        for (step, &(_, mut instruction)) in program.instructions.iter().enumerate() {
            let unknown = instruction.ranks().filter(|&named| named >= ranks);
            defects.extend(unknown.map(|named| Defect::NoSuchRank { rank, step, named }));
            for &mut Part { chunks, block } in instruction.parts_mut() {
                if chunks.start > chunks.end || chunks.end > parts || block >= blocks / program.rounds {
                    defects.push(Defect::NoSuchChunk { rank, step, chunks, chunk_count: parts });
                } else if blocks > 1 && chunks.count() > 1 {
                    defects.push(Defect::Scattered { rank, step, chunks });
                }
            }
        }
    }
    defects
}

/// Compares the result of every rank with the requirement of the operation.
fn wrong_results(
    buffers: &[Vec<Symbol>],
    symbols: &Symbols,
    operation: Operation,
    blocks: usize,
) -> Vec<Defect> {
    let mut defects = Vec::new();
    for (rank, buffer) in buffers.iter().enumerate() {
        for (cell, &symbol) in buffer.iter().enumerate() {
            let (chunk, block) = (cell / blocks, cell % blocks);
            let Some((origin, expected)) = required(operation, buffers.len(), rank, chunk) else { continue };
            let missing = symbols.missing(symbol, &expected);
            defects.extend(missing.map(|contributor| Defect::Missing { rank, chunk, contributor }));
            let is_foreign = symbols.value(symbol).chunk != origin * blocks + block;
            if is_foreign || symbols.has_foreign(symbol, &expected) {
                defects.push(Defect::Foreign { rank, chunk });
            }
        }
    }
    defects
}

/// Returns the required final value of a rank's chunk: its chunk of origin, and the contributing ranks.
pub(crate) fn required(
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
