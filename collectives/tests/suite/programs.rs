//! Mutants of lowered programs: a mutant that the verifier accepts must compute the same results as the original, bit for bit.

use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::program::{self, Incoming, Instruction, Outgoing, Part, Program};
use unisono_collectives::{Algorithm, Chunks, Combine, Operation, Plan, Source, Topology, verify_programs};

/// The programs of all ranks of a world for one call.
struct Sample {
    name: String,
    programs: Vec<Program>,
    plans: Vec<Plan>,
    operation: Operation,
    numbers: Vec<Vec<u64>>,
    inexact: Vec<Vec<f32>>,
}

/// The final buffers for two inputs: random integers, and floats whose sum depends on the order of additions.
type Results = (Vec<Vec<u64>>, Vec<Vec<u32>>);

impl Sample {
    fn new(
        (algorithm, operation): (Algorithm, Operation),
        topology: &Topology,
        count: usize,
        capabilities: &Capabilities,
    ) -> Self {
        let compile = |rank| CompiledPlan::new(algorithm, operation, topology, rank).unwrap();
        let compiled: Vec<_> = (0..topology.ranks()).map(compile).collect();
        let lower = |plan: &CompiledPlan| Program::lower(plan, &plan.execution(count, 4, capabilities));
        let programs: Vec<_> = compiled.iter().map(lower).collect();
        let plans = compiled.iter().map(|plan| plan.plan().clone()).collect();
        let cells = programs[0].chunk_count * programs[0].blocks;
        let mut random = 1_u64;
        let mut input = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            random
        };
        let numbers: Vec<Vec<u64>> = programs.iter().map(|_| (0..cells).map(|_| input()).collect()).collect();
        // Signs and magnitudes differ, so every order of additions rounds differently.
        let inexact = |&number: &u64| ((number >> 40) as f32 - 8e6) * 0.1_f32.powi((number % 7) as i32);
        let inexact = numbers.iter().map(|row| row.iter().map(inexact).collect()).collect();
        let name = format!("{algorithm}, {operation:?}, {} ranks, {count} elements", programs.len());
        Self { name, programs, plans, operation, numbers, inexact }
    }

    /// Runs the programs on both inputs. Returns `None` if they do not finish.
    fn run(&self, programs: &[Program]) -> Option<Results> {
        let sums = program::run(programs, &self.numbers, u64::wrapping_add).ok()?;
        let inexact = program::run(programs, &self.inexact, |held, arrived| held + arrived).ok()?;
        let bits = inexact.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect();
        Some((sums, bits))
    }
}

/// Samples of every lowering, in one block and in several.
fn samples() -> Vec<Sample> {
    let messages = Capabilities { eager_bytes: 4096, segment_bytes: 65_280, ..Capabilities::default() };
    let shared = Capabilities { is_shared: true, ..messages };
    let lanes = Capabilities { has_lanes: true, ..messages };
    let (three, four) = (Topology::single_node(3), Topology::single_node(4));
    let nodes = Topology::uniform(2, 2);
    use Algorithm::{HierarchicalCopy, MasterWorker, Rail, RecursiveDoubling, Ring, RoundRobin, Tree};
    use Operation::{AllGather, AllReduce, AllToAll, Broadcast};
    vec![
        Sample::new((RecursiveDoubling, AllReduce), &four, 8, &shared),
        Sample::new((Algorithm::AllToAll, AllReduce), &three, 8, &shared),
        Sample::new((Ring, AllReduce), &four, 8, &shared),
        Sample::new((Ring, AllReduce), &three, 600_000, &shared),
        Sample::new((Tree, AllReduce), &four, 1000, &messages),
        Sample::new((RoundRobin, AllReduce), &three, 600_000, &shared),
        Sample::new((RoundRobin, AllGather), &three, 600_000, &shared),
        Sample::new((RoundRobin, AllToAll), &three, 600_000, &shared),
        Sample::new((MasterWorker, Broadcast { root: 1 }), &four, 400_000, &shared),
        Sample::new((HierarchicalCopy, AllReduce), &nodes, 60_000, &lanes),
        Sample::new((Rail, AllReduce), &nodes, 60_000, &lanes),
    ]
}

fn next_chunk(part: &mut Part, chunk_count: usize) {
    if part.chunks.count() == 1 {
        part.chunks = Chunks::one((part.chunks.start + 1) % chunk_count);
    }
}

fn other(combine: &mut Combine) {
    *combine = if *combine == Combine::Reduce { Combine::Replace } else { Combine::Reduce };
}

/// Returns the mutants of one instruction. Some of them are equivalent to it.
fn changed(instruction: Instruction, ranks: usize, chunk_count: usize) -> Vec<Instruction> {
    use Instruction::{Exchange, Original, Read, Receive, Send, Swap, Sync, Write};
    let next = |rank: usize| (rank + 1) % ranks;
    let sends = |send: Outgoing| {
        let (mut part, source) = (send.part, send.source);
        next_chunk(&mut part, chunk_count);
        let of = if source == Source::Current { Source::Original } else { Source::Current };
        [Outgoing { to: next(send.to), ..send }, Outgoing { part, ..send }, Outgoing { source: of, ..send }]
    };
    let receives = |receive: Incoming| {
        let (mut part, mut combine) = (receive.part, receive.combine);
        next_chunk(&mut part, chunk_count);
        other(&mut combine);
        [
            Incoming { from: next(receive.from), ..receive },
            Incoming { part, ..receive },
            Incoming { combine, ..receive },
        ]
    };
    let mut changed = match instruction {
        Exchange(send, receive) => {
            let sends = send.into_iter().flat_map(sends).map(|send| Exchange(Some(send), receive));
            let receives =
                receive.into_iter().flat_map(receives).map(|receive| Exchange(send, Some(receive)));
            sends.chain(receives).chain([Exchange(None, receive), Exchange(send, None)]).collect()
        }
        Send { outgoing, credits } => sends(outgoing).map(|outgoing| Send { outgoing, credits }).to_vec(),
        Receive(incoming) => receives(incoming).map(Receive).to_vec(),
        Original { from, mut to, mut combine } => {
            next_chunk(&mut to, chunk_count);
            let moved = Original { from, to, combine };
            other(&mut combine);
            vec![moved, Original { from, to: from, combine }]
        }
        Sync => Vec::new(),
        Read { of, mut theirs, own, mut combine } => {
            let another = Read { of: next(of), theirs, own, combine };
            next_chunk(&mut theirs, chunk_count);
            let moved = Read { of, theirs, own, combine };
            other(&mut combine);
            vec![another, moved, Read { of, theirs: own, own, combine }]
        }
        Write { to, mut theirs, own } => {
            let another = Write { to: next(to), theirs, own };
            next_chunk(&mut theirs, chunk_count);
            vec![another, Write { to, theirs, own }]
        }
        Swap { with, mut theirs, own } => {
            let another = Swap { with: next(with), theirs, own };
            next_chunk(&mut theirs, chunk_count);
            vec![another, Swap { with, theirs, own }]
        }
    };
    changed.retain(|mutant| *mutant != instruction);
    changed
}

/// Returns all mutants with one change: an instruction dropped, duplicated, swapped with the next one, or changed.
fn mutants(programs: &[Program]) -> Vec<(String, Vec<Program>)> {
    let mut mutants = Vec::new();
    for (rank, program) in programs.iter().enumerate() {
        let mut add = |name: String, instructions: Vec<Instruction>| {
            let mut mutant = programs.to_vec();
            mutant[rank].instructions = instructions;
            mutants.push((format!("rank {rank}, {name}"), mutant));
        };
        let all = &program.instructions;
        for (at, &instruction) in all.iter().enumerate() {
            let (before, after) = (&all[..at], &all[at + 1..]);
            add(format!("{at} left out"), [before, after].concat());
            add(format!("{at} doubled"), [before, &[instruction; 2], after].concat());
            if let [next, rest @ ..] = after {
                add(format!("{at} after the next"), [before, &[*next, instruction], rest].concat());
            }
            for mutant in changed(instruction, programs.len(), program.chunk_count) {
                add(format!("{at} is {mutant:?}"), [before, &[mutant], after].concat());
            }
        }
    }
    mutants
}

#[test]
fn a_change_of_a_program_is_seen_unless_the_result_is_the_same() {
    let (mut seen, mut passed) = (0, 0);
    for sample in samples() {
        let Sample { name, programs, plans, operation, .. } = &sample;
        assert_eq!(verify_programs(programs, plans, *operation), [], "{name}");
        let expected = sample.run(programs).expect("a program without defects finishes");
        for (change, mutant) in mutants(programs) {
            if verify_programs(&mutant, plans, *operation).is_empty() {
                assert_eq!(sample.run(&mutant).as_ref(), Some(&expected), "{name}: {change}");
                passed += 1;
            } else {
                seen += 1;
            }
        }
    }
    assert!(seen > 2000 && passed < seen / 4, "{seen} were seen, and {passed} were harmless");
}
