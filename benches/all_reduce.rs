//! All-reduce between two threads: `cargo bench --bench all_reduce`. For processes there is `unisono bench`.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{Algorithm, ReduceOp};

const RANKS: usize = 2;

/// Returns the time that rank 0 needs for this number of all-reduces, which alternate between these sizes. All ranks begin
/// together.
fn time(algorithm: Algorithm, counts: &[usize], iterations: u64) -> Duration {
    let together = Barrier::new(RANKS);
    let times = unisono::threads(RANKS, |mut comm| {
        comm.set_choice(algorithm).expect("threads have every algorithm");
        let mut buffer = vec![1.0_f32; counts.iter().copied().max().unwrap_or(0)];
        together.wait();
        let began = Instant::now();
        for &count in counts.iter().cycle().take(iterations as usize) {
            comm.all_reduce(&mut buffer[..count], ReduceOp::Max).expect("both ranks do the same");
        }
        began.elapsed()
    });
    times[0]
}

fn threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("two threads");
    group.sample_size(10);
    for size_bytes in [8_usize, 4 << 10, 256 << 10, 16 << 20] {
        group.throughput(Throughput::Bytes(size_bytes as u64));
        for algorithm in [Algorithm::RecursiveDoubling, Algorithm::Butterfly, Algorithm::Ring] {
            group.bench_function(BenchmarkId::new(algorithm.name(), size_bytes), |bencher| {
                let counts = [size_bytes / size_of::<f32>()];
                bencher.iter_custom(|iterations| time(algorithm, &counts, iterations));
            });
        }
    }
    group.finish();
}

/// Short calls of several sizes, one after the other: each size is a kind of call, whose plan is cached.
fn kinds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("kinds of call");
    group.sample_size(10);
    for kinds in [1, 16, 17, 300] {
        let counts: Vec<_> = (1..=kinds).collect();
        group.bench_function(BenchmarkId::from_parameter(kinds), |bencher| {
            bencher.iter_custom(|iterations| time(Algorithm::RecursiveDoubling, &counts, iterations));
        });
    }
    group.finish();
}

criterion_group!(benches, threads, kinds);
criterion_main!(benches);
