//! Mutants of lowered programs: a mutant that the verifier accepts must compute the same results as the original, bit for bit.

use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::program::{self, Program};
use unisono_collectives::{Algorithm, Operation, Plan, Topology, verify_programs};
use unisono_testing::mutants::mutants;

/// The programs of all ranks of a world for one call.
struct Sample {
    name: String,
    programs: Vec<Program>,
    plans: Vec<Plan>,
    operation: Operation,
    numbers: Vec<Vec<u64>>,
    inexact: Vec<Vec<f32>>,
    /// Elements of a reduction that is not commutative, if the plans keep the order of ranks.
    matrices: Vec<Vec<Matrix>>,
}

/// A 2×2 matrix, modulo 2^32.
type Matrix = [u32; 4];

fn product([a, b, c, d]: Matrix, [e, f, g, h]: Matrix) -> Matrix {
    let dot = |one: u32, two: u32, three: u32, four: u32| {
        one.wrapping_mul(two).wrapping_add(three.wrapping_mul(four))
    };
    [dot(a, e, b, g), dot(a, f, b, h), dot(c, e, d, g), dot(c, f, d, h)]
}

/// The final buffers for each input: random integers, floats whose sum depends on the order of additions, and matrices.
type Results = (Vec<Vec<u64>>, Vec<Vec<u32>>, Vec<Vec<Matrix>>);

impl Sample {
    fn new(
        (algorithm, operation): (Algorithm, Operation),
        topology: &Topology,
        count: usize,
        capabilities: &Capabilities,
    ) -> Self {
        let compile = |rank| CompiledPlan::new(algorithm, operation, topology, rank).unwrap();
        Self::of((algorithm, operation), topology, count, capabilities, compile)
    }

    /// Returns a sample whose plans combine in the order of ranks.
    fn in_order(
        (algorithm, operation): (Algorithm, Operation),
        topology: &Topology,
        count: usize,
        capabilities: &Capabilities,
    ) -> Self {
        let compile = |rank| CompiledPlan::in_rank_order(algorithm, operation, topology, rank).unwrap();
        let mut sample = Self::of((algorithm, operation), topology, count, capabilities, compile);
        let matrix =
            |&number: &u64| [number, number >> 16, number >> 32, number >> 48].map(|bits| bits as u32 | 1);
        sample.matrices = sample.numbers.iter().map(|row| row.iter().map(matrix).collect()).collect();
        sample
    }

    fn of(
        (algorithm, operation): (Algorithm, Operation),
        topology: &Topology,
        count: usize,
        capabilities: &Capabilities,
        compile: impl Fn(usize) -> CompiledPlan,
    ) -> Self {
        let compiled: Vec<_> = (0..topology.ranks()).map(compile).collect();
        let programs: Vec<_> = compiled.iter().map(|plan| plan.program(count, 4, capabilities)).collect();
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
        Self { name, programs, plans, operation, numbers, inexact, matrices: Vec::new() }
    }

    /// Runs the programs on all inputs. Returns `None` if they do not finish.
    fn run(&self, programs: &[Program]) -> Option<Results> {
        let sums = program::run(programs, &self.numbers, u64::wrapping_add).ok()?;
        let inexact = program::run(programs, &self.inexact, |held, arrived| held + arrived).ok()?;
        let bits = inexact.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect();
        let products = match self.matrices.is_empty() {
            true => Vec::new(),
            false => program::run(programs, &self.matrices, product).ok()?,
        };
        Some((sums, bits, products))
    }
}

/// Returns samples of every lowering, in one block and in several.
fn samples() -> Vec<Sample> {
    let messages = Capabilities { eager_bytes: 4096, segment_bytes: 65_280, ..Capabilities::default() };
    let shared = Capabilities { is_shared: true, ..messages };
    let pipelined = Capabilities { can_pipeline: true, ..messages };
    let (three, four) = (Topology::single_node(3), Topology::single_node(4));
    let nodes = Topology::uniform(2, 2);
    use Algorithm::{HierarchicalCopy, MasterWorker, Rail, RecursiveDoubling, Ring, RoundRobin, Tree};
    use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter, Scan};
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
        Sample::new((HierarchicalCopy, AllReduce), &nodes, 60_000, &pipelined),
        Sample::new((Rail, AllReduce), &nodes, 60_000, &pipelined),
        Sample::in_order((RecursiveDoubling, AllReduce), &four, 8, &shared),
        Sample::in_order((RecursiveDoubling, Scan), &four, 8, &shared),
        Sample::in_order((RecursiveDoubling, AllReduce), &three, 60_000, &messages),
        Sample::in_order((Algorithm::AllToAll, ReduceScatter), &three, 60_000, &messages),
        Sample::in_order((Algorithm::AllToAll, Reduce { root: 1 }), &three, 60_000, &shared),
        Sample::in_order((RoundRobin, AllReduce), &Topology::single_node(2), 600_000, &shared),
    ]
}

#[test]
fn program_mutant_is_detected_unless_harmless() {
    let (mut detected, mut passed) = (0, 0);
    for sample in samples() {
        let Sample { name, programs, plans, operation, .. } = &sample;
        assert_eq!(verify_programs(programs, plans, *operation), [], "{name}");
        let expected = sample.run(programs).expect("a program without defects finishes");
        for (change, mutant) in mutants(programs) {
            if verify_programs(&mutant, plans, *operation).is_empty() {
                assert_eq!(sample.run(&mutant).as_ref(), Some(&expected), "{name}: {change}");
                passed += 1;
            } else {
                detected += 1;
            }
        }
    }
    assert!(detected > 1500 && passed < detected / 4, "{detected} were detected, and {passed} were harmless");
}
