//! The time to create a schedule, to prove one, and to predict one: `cargo bench --bench schedules`.

use criterion::{Criterion, criterion_group, criterion_main};
use unisono_collectives::model::Machine;
use unisono_collectives::{Algorithm, Operation, Topology, clock, verify};

/// One rank's plan of a large world. A program creates it once, at the first call.
fn generate(criterion: &mut Criterion) {
    let world = Topology::single_node(1024);
    let mut group = criterion.benchmark_group("plan of one rank of 1024");
    for algorithm in Algorithm::ALL {
        group.bench_function(algorithm.name(), |bencher| {
            bencher.iter(|| algorithm.plan(Operation::AllReduce, &world, 511));
        });
    }
    group.finish();
}

/// Verifies all ranks of a world.
fn prove(criterion: &mut Criterion) {
    let world = Topology::single_node(256);
    let mut group = criterion.benchmark_group("proof of 256 ranks");
    group.sample_size(10);
    for algorithm in [Algorithm::Ring, Algorithm::Butterfly] {
        let plans = algorithm.plans(Operation::AllReduce, &world).expect("every algorithm all-reduces");
        group.bench_function(algorithm.name(), |bencher| {
            bencher.iter(|| verify(&plans, Operation::AllReduce));
        });
    }
    group.finish();
}

/// A world of the size for which a communicator predicts before its first call, and one that only the clock can run: all
/// ranks of trees, and a ring in which the ranks of one node represent all.
fn predict(criterion: &mut Criterion) {
    let machine = Machine::default();
    for (nodes, ranks_per_node) in [(8, 8), (2048, 8)] {
        let world = Topology::uniform(nodes, ranks_per_node);
        let mut group = criterion.benchmark_group(format!("prediction of {} ranks", world.ranks()));
        group.sample_size(10);
        for algorithm in [Algorithm::Tree, Algorithm::Butterfly, Algorithm::Ring] {
            group.bench_function(algorithm.name(), |bencher| {
                bencher
                    .iter(|| clock::predict(algorithm, Operation::AllReduce, &world, &machine, 100 << 20, 4));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, generate, prove, predict);
criterion_main!(benches);
