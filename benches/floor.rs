//! What the physics allows: `cargo bench --bench floor`.
//!
//! Two threads on two cores do nothing but what an all-reduce of two arrays in shared memory cannot do without: tell
//! each other that they are there, load both halves, add, store both, and tell each other that they are done.
//! Before each round, which is not timed, each thread writes its own array, as one that computes gradients does:
//! half of it is then in the wrong cache.
//!
//! Beside it our all-reduce over threads. `mpirun -n 2 unisono bench --memory registered` may be held against it
//! too: the memory here is shared in the same way, in small pages.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustix::mm::{MapFlags, ProtFlags};
use unisono::{Algorithm, Choice, ReduceOp};

const SIZES_BYTES: [usize; 9] = [8, 512, 2 << 10, 8 << 10, 32 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20];

/// Where a thread is, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Place(AtomicU64);

/// Two threads that wait for each other.
#[derive(Debug, Default)]
struct Pair([Place; 2]);

impl Pair {
    fn meet(&self, own: usize, step: &mut u64) {
        *step += 1;
        self.0[own].0.store(*step, Ordering::Release);
        while self.0[1 - own].0.load(Ordering::Acquire) < *step {}
    }
}

/// Two arrays in memory that processes could share.
#[derive(Clone, Copy)]
struct Arrays {
    starts: [*mut f32; 2],
    count: usize,
}

// SAFETY: the threads use different halves between two meetings.
unsafe impl Send for Arrays {}

// SAFETY: as for `Send`.
unsafe impl Sync for Arrays {}

impl Arrays {
    fn new(size_bytes: usize) -> Self {
        let new = || {
            // SAFETY: a new mapping touches nothing that exists. It stays to the end of the program.
            let start = unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                let flags = MapFlags::SHARED | MapFlags::POPULATE;
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), size_bytes, access, flags)
            };
            start.expect("memory for a benchmark").cast()
        };
        Self { starts: [new(), new()], count: size_bytes / size_of::<f32>() }
    }

    fn half(&self, own: usize) -> Range<usize> {
        let middle = self.count / 2;
        [0..middle, middle..self.count][own].clone()
    }

    /// Writes a whole array.
    ///
    /// # Safety
    /// No other thread may use it meanwhile.
    unsafe fn fill(&self, own: usize) {
        // SAFETY: inside the mapping; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.starts[own], self.count) }.fill(1.0);
    }

    /// This thread's half of both arrays.
    ///
    /// # Safety
    /// Each thread has a half of its own, and no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "the arrays are reached by their addresses")]
    unsafe fn halves(&self, own: usize) -> (&mut [f32], &mut [f32]) {
        let half = self.half(own);
        // SAFETY: inside the mappings, which are different; the rest is the caller's promise.
        let part =
            |start: *mut f32| unsafe { std::slice::from_raw_parts_mut(start.add(half.start), half.len()) };
        (part(self.starts[0]), part(self.starts[1]))
    }
}

#[inline(never)]
fn add_both(one: &mut [f32], other: &mut [f32]) {
    for (one, other) in one.iter_mut().zip(other) {
        let sum = *one + *other;
        *one = sum;
        *other = sum;
    }
}

/// The same, compiled for wider vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_both_wide(one: &mut [f32], other: &mut [f32]) {
    for (one, other) in one.iter_mut().zip(other) {
        let sum = *one + *other;
        *one = sum;
        *other = sum;
    }
}

fn add(one: &mut [f32], other: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { add_both_wide(one, other) };
    }
    add_both(one, other);
}

/// The time of so many rounds.
fn floor(arrays: Arrays, iterations: u64) -> Duration {
    let pair = Pair::default();
    let run = |own: usize| {
        let (mut step, mut time) = (0, Duration::ZERO);
        for _ in 0..iterations {
            // SAFETY: between two rounds each thread has its own array to itself.
            unsafe { arrays.fill(own) };
            pair.meet(own, &mut step);
            let began = Instant::now();
            pair.meet(own, &mut step);
            // SAFETY: between two meetings each thread works on its own half.
            let (one, other) = unsafe { arrays.halves(own) };
            add(one, other);
            pair.meet(own, &mut step);
            time += began.elapsed();
        }
        time
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| run(1));
        let first = run(0);
        first.max(second.join().expect("no panic"))
    })
}

/// The time of so many of our all-reduces, by the better way for the size.
fn ours(size_bytes: usize, iterations: u64) -> Duration {
    let times = unisono::threads(2, |mut comm| {
        let small = size_bytes < 1 << 10;
        let algorithm = if small { Algorithm::RecursiveDoubling } else { Algorithm::RoundRobin };
        comm.set_choice(Choice::Algorithm(algorithm)).expect("threads have every algorithm");
        let mut array = comm.alloc::<f32>(size_bytes / size_of::<f32>()).expect("memory for a benchmark");
        let mut time = Duration::ZERO;
        for _ in 0..iterations {
            array.fill(1.0);
            comm.barrier().expect("both are there");
            let began = Instant::now();
            comm.all_reduce(&mut array, ReduceOp::Sum).expect("both do the same");
            time += began.elapsed();
        }
        time
    });
    times.into_iter().max().unwrap_or_default()
}

fn compare(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sum of f32, two threads");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    for size_bytes in SIZES_BYTES {
        group.throughput(Throughput::Bytes(size_bytes as u64));
        let arrays = Arrays::new(size_bytes);
        group.bench_function(BenchmarkId::new("floor", size_bytes), |bencher| {
            bencher.iter_custom(|iterations| floor(arrays, iterations));
        });
        group.bench_function(BenchmarkId::new("unisono", size_bytes), |bencher| {
            bencher.iter_custom(|iterations| ours(size_bytes, iterations));
        });
    }
    group.finish();
}

criterion_group!(benches, compare);
criterion_main!(benches);
