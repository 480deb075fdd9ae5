//! Compares the optimizers with a `memcpy` of as many bytes: `cargo bench --bench optimizer`.
//!
//! The output is bytes moved per second. SGD reads three arrays and writes two, AdamW reads four and writes three, a copy
//! reads one and writes one. A copy must also load the lines that it overwrites, which an update has read anyway, so an
//! update may be faster.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono_train::optimizer::{Factors, NamedRule, Optimizer, OptimizerSettings, square_sum};

/// The sizes of an array: all arrays together fit in the caches, or exceed them.
const SIZES_BYTES: [(usize, &str); 2] = [(1 << 20, "1 MiB"), (64 << 20, "64 MiB")];

fn optimizers(criterion: &mut Criterion) {
    for (size_bytes, size) in SIZES_BYTES {
        let mut group = criterion.benchmark_group(size);
        group.sample_size(10);
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_millis(500));
        let count = size_bytes / size_of::<f32>();
        let gradient = vec![0.125_f32; count];
        for name in ["sgd", "adamw"] {
            let NamedRule(rule) = name.parse().expect("it is in the catalogue");
            // The values and the state are read and written, the gradient is read.
            let moved_bytes = (3 + 2 * rule.state_names().len()) * size_bytes;
            group.throughput(Throughput::Bytes(moved_bytes as u64));
            let mut values = vec![1.0_f32; count];
            let mut optimizer = Optimizer::new(OptimizerSettings::from(rule), [(count, Factors::NO_DECAY)])
                .expect("the system has memory for a bench");
            group.bench_function(BenchmarkId::new(name, "update"), |bencher| {
                bencher.iter(|| {
                    optimizer.begin_step();
                    // The values do not change, so none becomes subnormal.
                    optimizer.update(0, &mut values, &gradient, 0.5, 1e-9).expect("the values are small");
                });
            });
            let (mut into, from) = (vec![0_u8; moved_bytes / 2], vec![1_u8; moved_bytes / 2]);
            group.bench_function(BenchmarkId::new(name, "memcpy of as many bytes"), |bencher| {
                bencher.iter(|| into.copy_from_slice(&from));
            });
        }
        group.throughput(Throughput::Bytes(size_bytes as u64));
        group.bench_function("sum of squares", |bencher| bencher.iter(|| square_sum(&gradient)));
        group.finish();
    }
}

criterion_group!(benches, optimizers);
criterion_main!(benches);
