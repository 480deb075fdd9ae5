//! Benchmarks of the codecs of gradients: `cargo bench -p unisono-compress --bench codecs`.
//!
//! The result is bytes of `f32` per second, for every format.

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{Bencher, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use half::bf16;
use unisono::DType;
use unisono::internals::Codec;
use unisono_compress::kernels::{low_rank, quantized, sparse};

/// A size within the caches of a core, and one beyond.
const SIZES_BYTES: [(usize, &str); 2] = [(32 << 10, "32 KiB"), (16 << 20, "16 MiB")];

fn group<'a>(criterion: &'a mut Criterion, name: &str, size_bytes: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(300));
    group.throughput(Throughput::Bytes(size_bytes as u64));
    group
}

/// Returns approximately normally distributed values: sums of a few random numbers.
fn gradients(count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..count).map(|_| (0..8).map(|_| random.f32() - 0.5).sum::<f32>() * 1e-3).collect()
}

/// Measures an encoder. It changes its array, which is refilled before every run outside the measurement.
fn encode(
    bencher: &mut Bencher,
    gradients: &[f32],
    values: &mut [f32],
    mut encode: impl FnMut(&mut [f32]) -> Result<(), usize>,
) {
    bencher.iter_custom(|runs| {
        let mut took = Duration::ZERO;
        for _ in 0..runs {
            values.copy_from_slice(gradients);
            let start = Instant::now();
            encode(values).expect("all are finite");
            took += start.elapsed();
        }
        took
    });
}

fn few_bits(criterion: &mut Criterion) {
    few_bits_by::<quantized::Int8>(criterion, "int8");
    few_bits_by::<quantized::Int4>(criterion, "int4");
    few_bits_by::<quantized::OneBit>(criterion, "onebit");
    few_bits_by::<quantized::Int8Stochastic>(criterion, "int8:stochastic");
    few_bits_by::<quantized::Int4Stochastic>(criterion, "int4:stochastic");
}

fn few_bits_by<C: quantized::Code>(criterion: &mut Criterion, code: &str) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        let gradients = gradients(size_bytes / size_of::<f32>());
        let mut values = gradients.clone();
        let mut encoded = vec![0; quantized::encoded_bytes::<C>(values.len())];
        let draws = quantized::Draws::of(&[0]);
        group.bench_function(format!("{code}/encode"), |bencher| {
            encode(bencher, &gradients, &mut values, |values| {
                quantized::encode::<C>(values, &mut encoded, draws)
            });
        });
        group.bench_function(format!("{code}/decode"), |bencher| {
            bencher.iter(|| quantized::decode::<C>(&mut values, &encoded));
        });
        values.fill(0.0);
        group.bench_function(format!("{code}/decode, add"), |bencher| {
            bencher.iter(|| quantized::decode_add::<C>(&mut values, &encoded));
        });
    }
}

fn largest(criterion: &mut Criterion) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        let gradients = gradients(size_bytes / size_of::<f32>());
        let mut values = gradients.clone();
        let mut pairs = Vec::new();
        // The residual grows: as in training, many magnitudes are soon just below the smallest one that is sent.
        let mut residual = vec![0.0; gradients.len()];
        for (name, is_like_the_last) in
            [("sparse/add, encode 1 %", true), ("sparse/the same, of a first array", false)]
        {
            let mut largest = sparse::Largest::default();
            group.bench_function(name, |bencher| {
                encode(bencher, &gradients, &mut values, |values| {
                    if !is_like_the_last {
                        largest = sparse::Largest::default();
                    }
                    largest.encode(&mut residual, values, gradients.len() / 100, &mut pairs)
                });
            });
        }
        // Selects a similar number of elements.
        let least = 2e-3;
        group.bench_function("sparse/add, count and encode from a threshold", |bencher| {
            encode(bencher, &gradients, &mut values, |values| {
                std::hint::black_box(sparse::count_from(&mut residual, values, least));
                sparse::encode_from(&mut residual, least, &mut pairs);
                Ok(())
            });
        });
        group.bench_function("sparse/decode, add 1 %", |bencher| {
            bencher.iter(|| sparse::decode_add(&mut values, &pairs));
        });
    }
}

fn products(criterion: &mut Criterion) {
    /// The width of a hidden layer.
    const COLUMNS: usize = 1024;
    const RANK: usize = 4;
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        let mut gradient = gradients(size_bytes / size_of::<f32>());
        let mut residual = vec![0.0; gradient.len()];
        let mut left = vec![0.0; RANK * gradient.len() / COLUMNS];
        let mut right = gradients(RANK * COLUMNS);
        group.bench_function("low rank 4/project", |bencher| {
            bencher.iter(|| low_rank::project(&mut residual, &gradient, &right, &mut left, RANK));
        });
        residual.copy_from_slice(&gradient);
        low_rank::orthonormalize(&mut left, RANK);
        group.bench_function("low rank 4/project back", |bencher| {
            bencher.iter(|| low_rank::project_back(&residual, &left, &mut right, RANK));
        });
        group.bench_function("low rank 4/reconstruct", |bencher| {
            bencher.iter(|| low_rank::reconstruct(&mut residual, &mut gradient, &left, &right, &right, RANK));
        });
    }
}

fn half_precision(criterion: &mut Criterion) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        let mut values = gradients(size_bytes / size_of::<f32>());
        let mut halves = vec![bf16::ZERO; values.len()];
        let codec = Codec::of(DType::BF16).expect("it is a half format");
        let values: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let halves: &mut [u8] = bytemuck::cast_slice_mut(&mut halves);
        group.bench_function("bf16/encode", |bencher| bencher.iter(|| (codec.encode)(halves, values)));
        group.bench_function("bf16/decode", |bencher| bencher.iter(|| (codec.decode)(values, halves)));
    }
}

criterion_group!(benches, few_bits, largest, products, half_precision);
criterion_main!(benches);
