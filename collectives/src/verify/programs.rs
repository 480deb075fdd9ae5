//! Verification of programs: runs the programs of all ranks on symbols.

use super::symbols::{Symbol, Symbols};
use super::{required, results};
use crate::defect::Defect;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::program::Program;
use crate::world::Rank;

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
