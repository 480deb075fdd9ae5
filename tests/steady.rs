//! The overhead of repeated calls of one size: no allocation, and no page fault.
//!
//! Over threads and over shared memory. MPI's messages allocate: Unisono keeps a list of requests for each, and MPI allocates too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use unisono::{Algorithm, Choice, Communicator, ReduceOp};
use unisono_testing::launch;
use unisono_testing::suite::{self, Module, Test};

#[path = "suite/common/memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "the other tests use all of it")]
mod memory;

use memory::Memory;

const DEADLINE: Duration = Duration::from_secs(60);

/// The system's allocator, which counts the allocations of this thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    suite::main(&[Module::with_roles("steady", tests, play)])
}

fn tests() -> Vec<Test> {
    let over_threads = |what: &'static str| Test::new(format!("{what} over threads"), move || threads(what));
    let over_memory =
        |what: &'static str| Test::new(format!("{what} over shared memory"), move || ranks(what));
    vec![
        over_threads(NO_ALLOCATIONS),
        over_memory(NO_ALLOCATIONS),
        over_threads(NO_FAULTS).unless(faults_are_noise),
        over_memory(NO_FAULTS).unless(faults_are_noise),
    ]
}

const NO_ALLOCATIONS: &str = "no allocations";
const NO_FAULTS: &str = "no page faults";

fn play(what: &str) -> ExitCode {
    steady(&mut unisono::init().unwrap(), what);
    ExitCode::SUCCESS
}

fn threads(what: &str) {
    unisono::threads(2, |mut comm| steady(&mut comm, what));
}

fn ranks(what: &str) {
    let mut command = launch::mpirun(2, &launch::this_program());
    launch::run(suite::play(&mut command, "steady", what), DEADLINE).expect_success();
}

/// Checks that, after two calls, ten more of the same size do not allocate or cause page faults.
fn steady(comm: &mut Communicator, what: &str) {
    let taken = || match what {
        NO_ALLOCATIONS => ALLOCATIONS.get() as i64,
        NO_FAULTS => page_faults(),
        _ => panic!("no such role: {what}"),
    };
    let before = taken();
    std::hint::black_box(vec![1_u8; 64 << 20]);
    assert!(taken() > before, "a new array is counted");
    let named = [Algorithm::RecursiveDoubling, Algorithm::Ring, Algorithm::RoundRobin].map(Choice::from);
    for choice in named.into_iter().chain([Choice::Auto]) {
        comm.set_choice(choice.clone()).unwrap();
        for memory in [Memory::Slices, Memory::Registered, Memory::Mixed] {
            for bytes in [8, 64 << 10, 8 << 20] {
                let mut array = memory.array(comm, vec![1.0_f32; bytes / 4]);
                let mut calls = |calls| {
                    for _ in 0..calls {
                        comm.all_reduce(&mut array, ReduceOp::Max).unwrap();
                    }
                };
                calls(2);
                let before = taken();
                calls(10);
                let more = taken() - before;
                let over = comm.transport();
                assert_eq!(more, 0, "{what}: {choice}, {memory:?}, {bytes} bytes, over {over}");
            }
        }
    }
}

/// Returns the number of page faults of this thread.
fn page_faults() -> i64 {
    // SAFETY: zeros are a valid value of plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one value there.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

/// Returns the reason why page faults prove nothing here: for NUMA balancing, the kernel unmaps pages from time to time to detect
/// accesses.
fn faults_are_noise() -> Option<String> {
    let setting = std::fs::read_to_string("/proc/sys/kernel/numa_balancing");
    let is_on = setting.is_ok_and(|setting| setting.trim() != "0");
    is_on.then(|| "`kernel.numa_balancing` is on, and causes page faults".to_owned())
}
