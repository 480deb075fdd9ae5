//! What a call costs beside its work, once one of its size was made: no allocation, and no page fault.
//!
//! Over threads and over shared memory. MPI's messages allocate: we keep a list of requests for each, and MPI
//! does what it likes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono::{Algorithm, Choice, Communicator, ReduceOp};

mod common;

use common::memory::Memory;
use unisono_testing::launch;

/// Tells a process that it is a rank.
const ROLE: &str = "UNISONO_TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(60);

/// The system's allocator, which counts what this thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does it all.
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
    if std::env::var_os(ROLE).is_some() {
        steady(&mut unisono::init().unwrap());
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let trials = vec![
        trial("steady over threads", over_threads),
        trial("steady over shared memory", over_shared_memory),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn over_threads() {
    unisono::threads(2, |mut comm| steady(&mut comm));
}

fn over_shared_memory() {
    let program = std::env::current_exe().unwrap();
    let mut command = launch::mpirun(2, program.to_str().unwrap());
    command.env(ROLE, "steady");
    launch::run(command, DEADLINE).expect_success();
}

/// After two calls, ten more of the same take nothing from the system.
fn steady(comm: &mut Communicator) {
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
                let before = (ALLOCATIONS.get(), page_faults());
                calls(10);
                let after = (ALLOCATIONS.get(), page_faults());
                let what = format!("{choice}, {memory:?}, {bytes} bytes, over {}", comm.transport());
                assert_eq!(after.0, before.0, "allocations: {what}");
                assert!(
                    faults_are_noise() || after.1 == before.1,
                    "{} page faults: {what}",
                    after.1 - before.1
                );
            }
        }
    }
}

/// How many pages this thread has found missing.
fn page_faults() -> i64 {
    // SAFETY: zeros are a valid value of plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one value there.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_minflt + usage.ru_majflt
}

/// Whether the kernel takes pages away by itself now and then, to see who uses them.
fn faults_are_noise() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/numa_balancing").is_ok_and(|setting| setting.trim() != "0")
}
