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

mod symbols;

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

/// Finds all defects in the programs of all ranks (rank 0's first) for an operation; empty if they are correct. The plans define the
/// order of additions, and are assumed correct ([`verify`](crate::verify())).
///
/// Beyond the plans, it verifies that no rank deadlocks, although messages are sent early or late; that sent data exist by then; that in a
/// pass over memory no two ranks access the same elements, and no rank accesses memory that was not lent to it; that every sum is added in
/// the order of the plan, so that results do not depend on the program; and, if the plan combines contributions in the order of ranks, that
/// the programs do.
///
/// ```
/// use unisono_collectives::execution::{Capabilities, CompiledPlan};
/// use unisono_collectives::{Algorithm, Operation, Topology, verify_programs};
///
/// let world = Topology::uniform(2, 2);
/// let compiled: Vec<_> = (0..4)
///     .map(|rank| CompiledPlan::new(Algorithm::Rail, Operation::AllReduce, &world, rank).unwrap())
///     .collect();
/// let network = Capabilities { can_pipeline: true, ..Capabilities::default() };
/// let mut programs: Vec<_> = compiled.iter().map(|plan| plan.program(1 << 20, 4, &network)).collect();
/// let plans: Vec<_> = compiled.iter().map(|compiled| compiled.plan().clone()).collect();
/// assert_eq!(verify_programs(&programs, &plans, Operation::AllReduce), []);
///
/// // One rank does not wait for its last message.
/// programs[0].instructions.pop();
/// assert!(!verify_programs(&programs, &plans, Operation::AllReduce).is_empty());
/// ```
///
/// # Panics
/// If there is not one program for each plan.
pub fn verify_programs(programs: &[Program], plans: &[Plan], operation: Operation) -> Vec<Defect> {
    assert_eq!(programs.len(), plans.len(), "one program for each rank's plan");
    let mut divisions = programs.iter().map(|program| (program.chunk_count, program.blocks));
    let Some((parts, blocks)) = divisions.next() else { return Vec::new() };
    if let Some((rank, (chunk_count, others))) =
        (1..).zip(divisions).find(|(_, found)| *found != (parts, blocks))
    {
        return vec![Defect::ChunkCount { rank, found: chunk_count * others, expected: parts * blocks }];
    }
    match results(programs, operation, (parts, blocks)) {
        Ok(found) if operation.reduces() => other_orders(&found, plans, operation, blocks),
        Ok(_) => Vec::new(),
        Err(defects) => defects,
    }
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
    let Interpreter { buffers, defects: stuck, .. } = Interpreter::run(programs, &mut symbols, inputs);
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

/// Returns the defects of sums that are not added in the order of the plans.
fn other_orders(
    (symbols, buffers): &(Symbols, Vec<Vec<Symbol>>),
    plans: &[Plan],
    operation: Operation,
    blocks: usize,
) -> Vec<Defect> {
    let (ranks, chunk_count) = (plans.len(), plans[0].chunk_count());
    let in_steps: Vec<_> = plans.iter().map(Program::of_plan).collect();
    let (planned, expected) = match results(&in_steps, operation, (chunk_count, 1)) {
        Ok(planned) => planned,
        Err(defects) => return defects,
    };
    let is_other = |rank: Rank, cell: usize| {
        let chunk = cell / blocks;
        let found = symbols.value(buffers[rank][cell]);
        let expected = planned.value(expected[rank][chunk]);
        // A plan whose operands are in the order of ranks may be run with a reduction that is not commutative.
        let is_reordered = expected.run.is_some() && found.run != expected.run;
        let is_required = required(operation, ranks, rank, chunk).is_some();
        is_required && (is_reordered || found.order != expected.order)
    };
    let cells = (0..ranks).flat_map(|rank| (0..chunk_count * blocks).map(move |cell| (rank, cell)));
    let other = cells.filter(|&(rank, cell)| is_other(rank, cell));
    other.map(|(rank, cell)| Defect::OtherOrder { rank, chunk: cell / blocks }).collect()
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
