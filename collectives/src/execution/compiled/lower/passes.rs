//! Passes over memory that all ranks access, without messages.

use crate::operation::Operation;
use crate::plan::Plan;
use crate::program::{Instruction, Part, Place, Program};
use crate::schedule::{Chunks, Combine};
use crate::world::Rank;

const PLACE: Place = Place { name: "one pass", phase: 0, step: 0 };

/// Returns a direct reduction: a rank reduces its own part of all buffers, and writes the result to those that need it.
pub(super) fn reduction(
    operation: Operation,
    (rank, plan): (Rank, &Plan),
    owned: &[Chunks],
) -> Vec<(Place, Instruction)> {
    let part = |rank: Rank| Part { chunks: owned[rank], block: 0 };
    let own = part(rank);
    let flattened = plan.flattened();
    let receives = flattened.steps().iter().filter_map(|step| step.receive);
    let from: Vec<_> = receives
        .filter(|receive| receive.combine.reduces())
        .map(|receive| (receive.from, receive.combine))
        .collect();
    let gets_all = |rank| match operation {
        Operation::Reduce { root } => rank == root,
        operation => operation == Operation::AllReduce,
    };
    let lend = |to| Instruction::Lend { to, part: part(to), read: true, written: gets_all(rank) };
    let reads = from.iter().map(|&(of, combine)| Instruction::Read { of, theirs: own, own, combine });
    let targets = from.iter().map(|&(to, _)| to).filter(|&to| gets_all(to));
    let writes = targets.map(|to| Instruction::Write { to, theirs: own, own });
    pass(from.iter().map(|&(to, _)| lend(to)).collect(), reads.chain(writes).collect())
}

/// Returns an operation that only moves elements: a rank moves its own part between the buffers, in one pass for each of `passes` blocks.
pub(super) fn moves(operation: Operation, (rank, ranks): (Rank, usize), passes: usize) -> Program {
    // Two ranks swap a block together, one half each.
    let halves = if operation == Operation::AllToAll { 2 } else { 1 };
    let part = |rank: Rank, half| Part { chunks: Chunks::one(rank), block: half };
    let others = || (0..ranks).filter(move |&other| other != rank);
    let (read, written) = match operation {
        Operation::AllGather => (false, true),
        Operation::Gather { root } => (false, rank == root),
        Operation::Scatter { root } => (rank == root, false),
        Operation::Broadcast { root } => (rank == root, rank != root),
        _ => (true, true),
    };
    let lend = |to, half| Instruction::Lend { to, part: part(to, half), read, written };
    let lends = others().filter(|_| read || written).flat_map(|to| (0..halves).map(move |half| (to, half)));
    let own = part(rank, 0);
    let read = |of| Instruction::Read { of, theirs: own, own, combine: Combine::Replace };
    let write = |to| Instruction::Write { to, theirs: own, own };
    let moves: Vec<_> = match operation {
        Operation::AllToAll => {
            let swap = |with| {
                let half = usize::from(rank > with);
                Instruction::Swap { with, theirs: part(rank, half), own: part(with, half) }
            };
            // The next rank comes first, so that ranks do not all access the same one at once.
            (1..ranks).map(|distance| swap((rank + distance) % ranks)).collect()
        }
        Operation::Gather { root } => others().filter(|&to| to == root).map(write).collect(),
        Operation::Scatter { root } => others().filter(|&of| of == root).map(read).collect(),
        operation => {
            let root = operation.root().unwrap_or(rank);
            let from_root = others().filter(|&of| of == root).map(read);
            from_root.chain(others().filter(|&to| to != root).map(write)).collect()
        }
    };
    let instructions = pass(lends.map(|(to, half)| lend(to, half)).collect(), moves);
    Program { chunk_count: ranks, blocks: halves * passes, rounds: passes, instructions }
}

fn pass(lends: Vec<Instruction>, accesses: Vec<Instruction>) -> Vec<(Place, Instruction)> {
    let sync = || [Instruction::Sync];
    let instructions = lends.into_iter().chain(sync()).chain(accesses).chain(sync());
    instructions.map(|instruction| (PLACE, instruction)).collect()
}
