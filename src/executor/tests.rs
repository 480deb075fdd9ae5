//! Mutants of programs over threads: they compute the results of the reference interpreter, or fail like it.

use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::partition::Partition;
use unisono_collectives::program::{self, Program};
use unisono_collectives::{Algorithm, Defect, Operation, Rank, Topology};
use unisono_testing::mutants::mutants;

use super::capabilities::capabilities;
use super::{Bound, Executor, Task};
use crate::call::Call;
use crate::codes::Codes;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::method::Method;
use crate::transport::{Calls, Deadlines, Fabric};

/// A call of a world, and the ranks' programs for it.
struct Sample {
    call: Call,
    method: Method,
    compiled: Vec<Arc<CompiledPlan>>,
    programs: Vec<Program>,
    inputs: Vec<Vec<f32>>,
    reduce: fn(f32, f32) -> f32,
}

fn add(left: f32, right: f32) -> f32 {
    left + right
}

/// A reduction whose result depends on the side of each operand.
fn lean(left: f32, right: f32) -> f32 {
    left * 0.75 - right
}

impl Sample {
    fn new(algorithm: Algorithm, operation: Operation, ranks: usize, count: usize) -> Self {
        let op = operation.reduces().then_some(ReduceOp::Sum);
        Self::of((algorithm, operation, op), add, CompiledPlan::new, ranks, count)
    }

    /// Returns a sample with a non-commutative reduction.
    fn in_order(algorithm: Algorithm, operation: Operation, ranks: usize, count: usize) -> Self {
        let op = ReduceOp::custom("lean", false, |left: &mut [f32], right: &[f32]| {
            left.iter_mut().zip(right).for_each(|(left, right)| *left = lean(*left, *right));
        });
        Self::of((algorithm, operation, Some(op)), lean, CompiledPlan::in_rank_order, ranks, count)
    }

    fn of(
        (algorithm, operation, op): (Algorithm, Operation, Option<ReduceOp>),
        reduce: fn(f32, f32) -> f32,
        compile: fn(Algorithm, Operation, &Topology, Rank) -> Option<CompiledPlan>,
        ranks: usize,
        count: usize,
    ) -> Self {
        let (call, method) = (Call::new(operation, op, DType::F32, count), Method::Algorithm(algorithm));
        let topology = Topology::single_node(ranks);
        let compile = |rank| Arc::new(compile(algorithm, operation, &topology, rank).unwrap());
        let compiled: Vec<_> = (0..ranks).map(compile).collect();
        let threads = Fabric::threads(ranks).unwrap();
        let capabilities = capabilities(&threads[0], ranks, &call, method);
        let programs = compiled.iter().map(|plan| plan.program(count, 4, &capabilities)).collect();
        let mut random = fastrand::Rng::with_seed(1);
        // Signs and magnitudes differ, so every order of additions rounds differently.
        let mut value = || (random.f32() - 0.5) * 10_f32.powi(random.i32(-3..4));
        let inputs = (0..ranks).map(|_| (0..count).map(|_| value()).collect()).collect();
        Self { call, method, compiled, programs, inputs, reduce }
    }

    /// Runs programs over threads. `None` if the executor refuses one of them.
    fn run(&self, programs: &[Program], timeout: Duration) -> Option<Vec<Result<Vec<f32>>>> {
        let bind = |(program, compiled): (&Program, _)| {
            let parts = self.call.parts(program.chunk_count, None);
            Bound::bind(program, compiled, &self.call, self.method, (&parts, &parts)).ok()
        };
        let bound: Vec<_> = programs.iter().zip(&self.compiled).map(bind).collect::<Option<_>>()?;
        let threads = Fabric::threads(programs.len()).unwrap();
        let run = |(mut transport, (bound, input)): (Fabric, (&Bound, &Vec<f32>))| {
            let rank = transport.rank();
            let header = Calls::default().next(1, self.call.count, Codes::new(&self.call, self.method), 0);
            let deadlines = Deadlines { timeout, quiet: timeout };
            let task = Task { header: &header, method: self.method, deadlines: &deadlines };
            let mut buffer = input.clone();
            let mut executor = Executor::new(transport.registry());
            let done = executor.run(bound, &task, bytemuck::cast_slice_mut(&mut buffer), &mut transport);
            if let Err(error) = &done {
                transport.fail(rank, &error.to_string());
            }
            done.map(|()| buffer)
        };
        Some(std::thread::scope(|scope| {
            let of_ranks = threads.into_iter().zip(bound.iter().zip(&self.inputs));
            let started: Vec<_> = of_ranks.map(|rank| scope.spawn(move || run(rank))).collect();
            started.into_iter().map(|rank| rank.join().unwrap()).collect()
        }))
    }
}

#[test]
fn programs_and_their_mutants_agree_with_the_interpreter() {
    use Algorithm::{Butterfly, MasterWorker, RecursiveDoubling, Ring, RoundRobin, Tree};
    use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter, Scan};
    // Chunks have equal sizes, so a mutant that exchanges two of them still sends the expected number of bytes.
    let samples = [
        Sample::new(RecursiveDoubling, AllReduce, 4, 8),
        Sample::new(Algorithm::AllToAll, AllReduce, 3, 8),
        Sample::new(Ring, AllReduce, 4, 8),
        Sample::new(Ring, AllReduce, 3, 9000),
        Sample::new(Tree, AllReduce, 4, 9000),
        Sample::new(Butterfly, AllReduce, 4, 9000),
        Sample::new(RoundRobin, AllReduce, 2, 6),
        Sample::new(RoundRobin, AllReduce, 3, 9000),
        Sample::new(RoundRobin, AllGather, 3, 9000),
        Sample::new(RoundRobin, AllToAll, 3, 9000),
        Sample::new(MasterWorker, Broadcast { root: 1 }, 4, 500_000),
        Sample::in_order(RecursiveDoubling, AllReduce, 4, 8),
        Sample::in_order(RecursiveDoubling, Scan, 4, 9000),
        Sample::in_order(Algorithm::AllToAll, ReduceScatter, 3, 9000),
        Sample::in_order(Algorithm::AllToAll, Reduce { root: 1 }, 3, 8),
        Sample::in_order(RoundRobin, AllReduce, 2, 9000),
    ];
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let (mut computed, mut failed, mut refused) = (0, 0, 0);
    for sample in samples {
        let unchanged = std::iter::once(("unchanged".to_owned(), sample.programs.clone()));
        for (change, programs) in unchanged.chain(mutants(&sample.programs)) {
            let name = format!("{}, {}: {change}", sample.method, sample.call.operation);
            match program::run(&programs, &sample.inputs, sample.reduce) {
                Ok(expected) => match sample.run(&programs, Duration::from_secs(60)) {
                    Some(done) => {
                        for (rank, (done, expected)) in done.iter().zip(&expected).enumerate() {
                            let done = done.as_ref().unwrap_or_else(|error| panic!("{name}: {error}"));
                            assert!(bits(done) == bits(expected), "{name}: rank {rank}");
                        }
                        computed += 1;
                    }
                    None => {
                        assert_ne!(change, "unchanged", "{name}");
                        refused += 1;
                    }
                },
                // The outcome of a race depends on timing. A message that was not received affects only the next call.
                Err(defects)
                    if defects.iter().any(|defect| {
                        matches!(
                            defect,
                            Defect::Race { .. } | Defect::NotLent { .. } | Defect::NotTaken { .. }
                        )
                    }) => {}
                Err(defects) => match sample.run(&programs, Duration::from_millis(50)) {
                    Some(done) => {
                        assert!(done.iter().any(Result::is_err), "{name}: {defects:?}");
                        failed += 1;
                    }
                    None => refused += 1,
                },
            }
        }
    }
    println!("{computed} were computed, {failed} failed, {refused} were refused");
    assert!(computed > 400 && failed > 50 && refused < 100, "{computed}, {failed}, {refused}");
}

#[test]
fn largest_part_determines_the_number_of_blocks() {
    let (algorithm, operation) = (Algorithm::RoundRobin, Operation::AllGather);
    let call = Call::new(operation, None, DType::U8, 8 << 20);
    let compiled = CompiledPlan::new(algorithm, operation, &Topology::single_node(2), 0).unwrap();
    let (compiled, threads) = (Arc::new(compiled), Fabric::threads(2).unwrap());
    let blocks = |counts: [usize; 2]| {
        let parts = Partition::given(&counts);
        Bound::compile(&compiled, &call, Method::Algorithm(algorithm), Some(&parts), &threads[0]).blocks
    };
    assert_eq!((blocks([4 << 20, 4 << 20]), blocks([8 << 20, 0])), (8, 16));
}

#[test]
fn every_program_of_a_plan_can_be_bound() {
    let messages = Capabilities { eager_bytes: 4096, segment_bytes: 65_280, ..Capabilities::default() };
    let everywhere = [
        messages,
        Capabilities { is_shared: true, ..messages },
        Capabilities { can_pipeline: true, ..messages },
        Capabilities { by_vendor: true, ..messages },
    ];
    let nodes = [(2, 2), (3, 1), (4, 2)].map(|(nodes, local)| Topology::uniform(nodes, local));
    for topology in (1..=9).map(Topology::single_node).chain(nodes) {
        for algorithm in Algorithm::ALL {
            for operation in Operation::all(topology.ranks() / 2) {
                let op = operation.reduces().then_some(ReduceOp::Mean);
                for (count, capabilities) in
                    [0, 5, 1000, 1_500_000].into_iter().flat_map(|count| everywhere.map(|one| (count, one)))
                {
                    let call = Call::new(operation, op, DType::BF16, count);
                    for rank in 0..topology.ranks() {
                        let Some(compiled) = CompiledPlan::new(algorithm, operation, &topology, rank) else {
                            continue;
                        };
                        let compiled = Arc::new(compiled);
                        let program = compiled.program(count, 2, &capabilities);
                        let parts = call.parts(program.chunk_count, None);
                        let method = Method::Algorithm(algorithm);
                        let bound = Bound::bind(&program, &compiled, &call, method, (&parts, &parts));
                        assert!(
                            bound.is_ok(),
                            "{algorithm}, {operation}, {topology:?}, {capabilities:?}: {bound:?}"
                        );
                    }
                }
            }
        }
    }
}
