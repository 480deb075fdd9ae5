//! The reduction kernels beside `memcpy` of as many bytes: `cargo bench --bench reduce`.
//!
//! The result is bytes of one array per second. A reduction reads two arrays and writes one, a copy reads
//! one and writes one: out of the caches, about two thirds of a copy's rate is all there is.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use unisono::internals::{Accumulator, joint, kernel};
use unisono::{DType, ReduceOp};

/// One that stays in the caches of a core, and one that goes through memory.
const SIZES_BYTES: [(usize, &str); 2] = [(32 << 10, "32 KiB"), (16 << 20, "16 MiB")];

const OPERATIONS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Product];

/// An array that begins at a cache line, where nothing is NaN or subnormal in any type and
/// nothing becomes so: products are with ones, sums with zeros.
struct Array {
    words: Vec<u64>,
    start: usize,
    size_bytes: usize,
}

impl Array {
    fn of(element: &[u8], size_bytes: usize) -> Self {
        let words = vec![0; size_bytes / size_of::<u64>() + 8];
        let start = words.as_ptr().align_offset(64);
        let mut array = Self { words, start, size_bytes };
        array.bytes().chunks_mut(element.len()).for_each(|place| place.copy_from_slice(element));
        array
    }

    fn bytes(&mut self) -> &mut [u8] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words[self.start..]);
        &mut bytes[..self.size_bytes]
    }
}

/// Returns the bytes of zero, or of one.
fn constant(dtype: DType, one: bool) -> Vec<u8> {
    let mut bytes = vec![0; dtype.size_bytes()];
    match dtype {
        _ if !one => {}
        DType::F32 => bytes.copy_from_slice(&1.0_f32.to_ne_bytes()),
        DType::F64 => bytes.copy_from_slice(&1.0_f64.to_ne_bytes()),
        DType::F16 => bytes.copy_from_slice(&half::f16::ONE.to_ne_bytes()),
        DType::BF16 => bytes.copy_from_slice(&half::bf16::ONE.to_ne_bytes()),
        _ => bytes[0] = 1,
    }
    bytes
}

fn group<'a>(criterion: &'a mut Criterion, name: &str, size_bytes: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10);
    group.warm_up_time(Duration::from_millis(50));
    group.measurement_time(Duration::from_millis(300));
    group.throughput(Throughput::Bytes(size_bytes as u64));
    group
}

fn kernels(criterion: &mut Criterion) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        let [mut into, mut from] = [0, 1].map(|byte| Array::of(&[byte], size_bytes));
        group.bench_function("memcpy", |bencher| {
            bencher.iter(|| into.bytes().copy_from_slice(from.bytes()));
        });
        for dtype in DType::ALL {
            for op in OPERATIONS {
                let kernel = kernel(dtype, op);
                let mut held = Array::of(&constant(dtype, true), size_bytes);
                let mut arrived = Array::of(&constant(dtype, op == ReduceOp::Product), size_bytes);
                group.bench_function(BenchmarkId::new(dtype.name(), op), |bencher| {
                    bencher.iter(|| kernel(held.bytes(), arrived.bytes()));
                });
            }
        }
    }
}

/// Two arrays that both become the result: one more array written than by a kernel.
fn joints(criterion: &mut Criterion) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let joint = joint(dtype, ReduceOp::Sum);
            let [mut one, mut other] = [0, 1].map(|_| Array::of(&constant(dtype, false), size_bytes));
            group.bench_function(BenchmarkId::new(dtype.name(), "joint sum"), |bencher| {
                bencher.iter(|| joint(one.bytes(), other.bytes()));
            });
        }
    }
}

/// The conversions of a half format that is held in `f32`. The bytes are those of the half format.
fn accumulators(criterion: &mut Criterion) {
    for (size_bytes, name) in SIZES_BYTES {
        let mut group = group(criterion, name, size_bytes);
        for dtype in [DType::F16, DType::BF16] {
            let accumulator = Accumulator::of(dtype, ReduceOp::Sum).expect("half formats are widened");
            let mut held = Array::of(&constant(DType::F32, true), 2 * size_bytes);
            let mut arrived = Array::of(&constant(dtype, false), size_bytes);
            let mut run = |name: &str, pass: &dyn Fn(&mut [u8], &mut [u8])| {
                group.bench_function(BenchmarkId::new(dtype.name(), name), |bencher| {
                    bencher.iter(|| pass(held.bytes(), arrived.bytes()));
                });
            };
            run("encode", &|held, arrived| (accumulator.codec.encode)(arrived, held));
            run("decode", &|held, arrived| (accumulator.codec.decode)(held, arrived));
            run("widened: reduce", &|held, arrived| (accumulator.reduce)(held, arrived));
            run("widened: round", &|held, arrived| (accumulator.round)(held, arrived));
        }
    }
}

criterion_group!(benches, kernels, joints, accumulators);
criterion_main!(benches);
