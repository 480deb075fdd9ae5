//! Verification of programs, by running those of all ranks on symbols.

use super::run::Interpreter;
use super::{Part, Program};
use crate::defect::Defect;
use crate::interpret;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::verify::promise;
use crate::verify::symbols::{Symbol, Symbols};
use crate::world::Rank;

/// Finds all defects in the programs of all ranks (rank 0's first) for an operation; empty if they are correct. The plans define the
/// order of additions, and are assumed correct ([`verify`](crate::verify())).
///
/// Beyond the plans, it verifies that no rank deadlocks, although messages go early or late; that sent data is there by then;
/// that in a pass over memory no two ranks access the same elements, and none accesses what it was not lent; and that every sum is added
/// in the order of the plan, so that results do not depend on the program; and, if the plan combines contributions in the order of
/// ranks, that the programs do.
///
/// ```
/// use unisono_collectives::execution::{Capabilities, CompiledPlan};
/// use unisono_collectives::{Algorithm, Operation, Topology, verify_programs};
///
/// let world = Topology::uniform(2, 2);
/// let compiled: Vec<_> = (0..4)
///     .map(|rank| CompiledPlan::new(Algorithm::Rail, Operation::AllReduce, &world, rank).unwrap())
///     .collect();
/// let network = Capabilities { has_lanes: true, ..Capabilities::default() };
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
    let (ranks, mut cuts) =
        (programs.len(), programs.iter().map(|program| (program.chunk_count, program.blocks)));
    let Some((parts, blocks)) = cuts.next() else { return Vec::new() };
    if let Some((rank, (chunk_count, others))) = (1..).zip(cuts).find(|(_, found)| *found != (parts, blocks))
    {
        return vec![Defect::ChunkCount { rank, found: chunk_count * others, expected: parts * blocks }];
    }
    let defects = malformed(programs, parts, blocks);
    if !defects.is_empty() {
        return defects;
    }
    let (mut symbols, inputs) = Symbols::in_blocks(operation, ranks, parts, blocks);
    let mut interpreter = Interpreter::new(programs, &mut symbols, inputs);
    interpreter.run();
    let Interpreter { buffers, defects: stuck, .. } = interpreter;
    let mut defects = std::mem::take(&mut symbols.defects);
    defects.extend(stuck);
    if defects.is_empty() {
        defects = wrong_results(&buffers, &symbols, operation, blocks);
    }
    if defects.is_empty() && operation.reduces() {
        defects = other_orders(&buffers, &symbols, plans, operation, blocks);
    }
    defects
}

/// Ranks and parts that do not exist, and blocks that are not contiguous.
fn malformed(programs: &[Program], parts: usize, blocks: usize) -> Vec<Defect> {
    let mut defects = Vec::new();
    let ranks = programs.len();
    for (rank, program) in programs.iter().enumerate() {
        for (step, &(_, mut instruction)) in program.instructions.iter().enumerate() {
            let nobody = instruction.ranks().filter(|&named| named >= ranks);
            defects.extend(nobody.map(|named| Defect::NoSuchRank { rank, step, named }));
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

/// Compares the result of every rank with what the operation requires.
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
            let Some((origin, expected)) = promise(operation, buffers.len(), rank, chunk) else { continue };
            let missing = symbols.missing(symbol, &expected);
            defects.extend(missing.map(|contributor| Defect::Missing { rank, chunk, contributor }));
            let is_foreign = symbols.chunk(symbol) != origin * blocks + block;
            if is_foreign || symbols.has_foreign(symbol, &expected) {
                defects.push(Defect::Foreign { rank, chunk });
            }
        }
    }
    defects
}

/// Sums that are not added in the order of the plans.
fn other_orders(
    buffers: &[Vec<Symbol>],
    symbols: &Symbols,
    plans: &[Plan],
    operation: Operation,
    blocks: usize,
) -> Vec<Defect> {
    let (ranks, chunk_count) = (plans.len(), plans[0].chunk_count());
    let schedules: Vec<_> = plans.iter().map(Plan::flattened).collect();
    let (mut planned, inputs) = Symbols::inputs(operation, ranks, chunk_count);
    let outcome = interpret::run(&schedules, inputs, &mut planned);
    let is_other = |rank: Rank, cell: usize| {
        let chunk = cell / blocks;
        let (found, expected) = (buffers[rank][cell], outcome.buffers[rank][chunk]);
        // A plan whose operands are in the order of ranks may be run with a reduction that is not commutative.
        let is_reordered = planned.run(expected).is_some() && symbols.run(found) != planned.run(expected);
        promise(operation, ranks, rank, chunk).is_some()
            && (is_reordered || symbols.order(found) != planned.order(expected))
    };
    let cells = (0..ranks).flat_map(|rank| (0..chunk_count * blocks).map(move |cell| (rank, cell)));
    let other = cells.filter(|&(rank, cell)| is_other(rank, cell));
    other.map(|(rank, cell)| Defect::OtherOrder { rank, chunk: cell / blocks }).collect()
}
