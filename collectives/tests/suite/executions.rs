//! The programs of every execution are correct in every small world, and the verifier detects incorrect ones.

use unisono_collectives::execution::{Capabilities, CompiledPlan, Execution};
use unisono_collectives::program::Instruction;
use unisono_collectives::{Algorithm, Chunks, Defect, Operation, Plan, Program, Topology, verify_programs};

/// Messages alone, memory that all share (also with sums in a wider format), a network between nodes, and a vendor's collectives.
const EVERYWHERE: [Capabilities; 5] = {
    let messages = Capabilities {
        is_shared: false,
        can_pipeline: false,
        eager_bytes: 4096,
        segment_bytes: 65_280,
        accumulates: false,
        by_vendor: false,
    };
    let shared = Capabilities { is_shared: true, ..messages };
    let wide = Capabilities { accumulates: true, ..shared };
    [
        messages,
        shared,
        wide,
        Capabilities { can_pipeline: true, ..messages },
        Capabilities { by_vendor: true, ..messages },
    ]
};

/// Elements of four bytes: none, fewer than ranks, eager ones, one block of each chunk, and several.
const COUNTS: [usize; 6] = [0, 3, 1000, 20_000, 400_000, 1_500_000];

fn compile(algorithm: Algorithm, operation: Operation, topology: &Topology) -> Option<Vec<CompiledPlan>> {
    (0..topology.ranks()).map(|rank| CompiledPlan::new(algorithm, operation, topology, rank)).collect()
}

fn programs(compiled: &[CompiledPlan], count: usize, capabilities: &Capabilities) -> Vec<Program> {
    compiled.iter().map(|plan| plan.program(count, 4, capabilities)).collect()
}

fn find_defects(compiled: &[CompiledPlan], programs: &[Program], operation: Operation) -> Vec<Defect> {
    let plans: Vec<Plan> = compiled.iter().map(|compiled| compiled.plan().clone()).collect();
    verify_programs(programs, &plans, operation)
}

/// Returns the name of an execution, and whether it has several blocks.
fn kind(execution: Execution) -> (&'static str, bool) {
    let kind = match execution {
        Execution::Eager => "eager",
        Execution::Messages { .. } => "messages",
        Execution::ByVendor => "by vendor",
        Execution::SinglePass { .. } => "single pass",
        Execution::Moves { .. } => "moves",
        Execution::Pipelined { .. } => "pipelined",
    };
    (kind, execution.blocks() > 1)
}

fn topologies() -> impl Iterator<Item = Topology> {
    let flat = (1..=9).map(Topology::single_node);
    let even = [(2, 1), (2, 2), (2, 3), (3, 2), (4, 1), (4, 2), (8, 1)];
    let even = even.map(|(nodes, local)| Topology::uniform(nodes, local));
    let uneven = [&[3, 1][..], &[1, 3], &[2, 1, 1], &[2, 1, 1, 1]].map(Topology::from_node_sizes);
    flat.chain(even).chain(uneven).chain([Topology::from_node_of(vec![0, 1, 0, 1])])
}

#[test]
fn every_program_in_every_small_world_is_correct() {
    let mut kinds = Vec::new();
    for topology in topologies() {
        for algorithm in Algorithm::ALL {
            for operation in Operation::all(topology.ranks() / 2) {
                let Some(compiled) = compile(algorithm, operation, &topology) else { continue };
                for capabilities in EVERYWHERE {
                    for count in COUNTS {
                        let execution = |plan: &CompiledPlan| plan.execution(count, 4, &capabilities);
                        let executions: Vec<_> = compiled.iter().map(execution).collect();
                        let name = format!("{algorithm}, {operation:?}, {topology:?}, {count} elements");
                        assert!(
                            executions.iter().all(|execution| *execution == executions[0]),
                            "{name}: {executions:?}"
                        );
                        let programs = programs(&compiled, count, &capabilities);
                        let defects = find_defects(&compiled, &programs, operation);
                        assert!(defects.is_empty(), "{name}, {:?}: {}", executions[0], defects[0]);
                        if !kinds.contains(&kind(executions[0])) {
                            kinds.push(kind(executions[0]));
                        }
                    }
                }
            }
        }
    }
    kinds.sort_unstable();
    let both = |kind| [(kind, false), (kind, true)];
    let (first, last) = ([("by vendor", false), ("eager", false)], [("pipelined", true)]);
    let expected = [&first[..], &both("messages"), &both("moves"), &last, &both("single pass")];
    assert_eq!(kinds, expected.concat());
}

/// Returns the programs of ranks that reduce 400 000 elements in one node of four.
fn round_robin() -> (Vec<CompiledPlan>, Vec<Program>) {
    let compiled = compile(Algorithm::RoundRobin, Operation::AllReduce, &Topology::single_node(4)).unwrap();
    let programs = programs(&compiled, 400_000, &EVERYWHERE[1]);
    (compiled, programs)
}

#[test]
fn differing_number_of_blocks_is_detected() {
    let (compiled, mut mutant) = round_robin();
    mutant[1] = compiled[1].program(1_500_000, 4, &EVERYWHERE[1]);
    let defects = find_defects(&compiled, &mutant, Operation::AllReduce);
    assert!(matches!(defects[..], [Defect::ChunkCount { rank: 1, .. }]), "{defects:?}");
}

#[test]
fn messages_during_passes_of_others_are_detected() {
    let (compiled, mut mutant) = round_robin();
    mutant[1] = compiled[1].program(400_000, 4, &EVERYWHERE[0]);
    assert!(!find_defects(&compiled, &mutant, Operation::AllReduce).is_empty());
}

#[test]
fn premature_send_is_detected() {
    let compiled = compile(Algorithm::Ring, Operation::AllReduce, &Topology::single_node(4)).unwrap();
    let mut mutant = programs(&compiled, 8, &EVERYWHERE[1]);
    // All sends come first, as if none of them sent received data.
    mutant[2].instructions.sort_by_key(|(_, instruction)| !matches!(instruction, Instruction::Send(_)));
    let defects = find_defects(&compiled, &mutant, Operation::AllReduce);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Missing { .. })), "{defects:?}");
}

#[test]
fn access_to_unlent_memory_is_detected() {
    let changes: [fn(&mut Instruction); 3] = [
        |instruction| {
            if let Instruction::Lend { to: 1, part, .. } = instruction {
                part.chunks = Chunks::one(2);
            }
        },
        |instruction| {
            if let Instruction::Lend { to: 1, read, .. } = instruction {
                *read = false;
            }
        },
        |instruction| {
            if let Instruction::Lend { to: 1, written, .. } = instruction {
                *written = false;
            }
        },
    ];
    for change in changes {
        let (compiled, mut mutant) = round_robin();
        mutant[0].instructions.iter_mut().for_each(|(_, instruction)| change(instruction));
        let defects = find_defects(&compiled, &mutant, Operation::AllReduce);
        let expected = Defect::NotLent { rank: 1, of: 0, chunk: 1 };
        assert!(defects.contains(&expected), "{defects:?}");
    }
}

#[test]
fn two_ranks_on_the_same_elements_are_a_race() {
    let (compiled, mut mutant) = round_robin();
    for (_, instruction) in &mut mutant[0].instructions {
        if let Instruction::Write { to: 2, theirs, .. } = instruction {
            theirs.chunks = Chunks::one(1);
        }
    }
    // Rank 2 lends this chunk to rank 1.
    for (_, instruction) in &mut mutant[2].instructions {
        if let Instruction::Lend { to: 0, part, .. } = instruction {
            part.chunks = Chunks::new(0, 2);
        }
    }
    let defects = find_defects(&compiled, &mutant, Operation::AllReduce);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Race { of: 2, .. })), "{defects:?}");
}

#[test]
fn premature_post_is_detected() {
    let compiled = compile(Algorithm::Rail, Operation::AllReduce, &Topology::uniform(2, 2)).unwrap();
    let mut mutant = programs(&compiled, 100_000, &EVERYWHERE[3]);
    for program in &mut mutant {
        let is_post = |(_, instruction): &(_, Instruction)| matches!(instruction, Instruction::Post(..));
        let post = program.instructions.iter().position(is_post).unwrap();
        let early = program.instructions.remove(post);
        program.instructions.insert(0, early);
    }
    let defects = find_defects(&compiled, &mutant, Operation::AllReduce);
    assert!(defects.iter().any(|defect| matches!(defect, Defect::Missing { .. })), "{defects:?}");
}
