//! All-reduce between two threads: `cargo bench --bench all_reduce`. For processes there is `unisono bench`.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::{Algorithm, ReduceOp};

const RANKS: usize = 2;

/// The time that rank 0 needs for so many all-reduces, which all ranks begin together.
fn time(algorithm: Algorithm, count: usize, iterations: u64) -> Duration {
    let together = Barrier::new(RANKS);
    let times = unisono::threads(RANKS, |mut comm| {
        comm.set_choice(algorithm).expect("threads have every algorithm");
        let mut buffer = vec![1.0_f32; count];
        together.wait();
        let began = Instant::now();
        for _ in 0..iterations {
            comm.all_reduce(&mut buffer, ReduceOp::Max).expect("both ranks do the same");
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
                bencher.iter_custom(|iterations| time(algorithm, size_bytes / size_of::<f32>(), iterations));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, threads);
criterion_main!(benches);
