//! What it costs to make a schedule, and to prove one: `cargo bench --bench schedules`.

use criterion::{Criterion, criterion_group, criterion_main};
use unisono_collectives::{Algorithm, Operation, Topology, verify};

/// One rank's plan of a large world. A program makes it once, at the first call.
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

/// All ranks of a world, symbolically.
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

criterion_group!(benches, generate, prove);
criterion_main!(benches);
