//! Small all-reduces at random, very many: none wrong, and no growth of memory.
//!
//! Launches itself under mpirun, as tests/mpi.rs does.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono::Communicator;
use unisono::mpi::Threading;

mod common;

use common::small::{Held, all_reduces};
use unisono_testing::launch;
use unisono_testing::soak::Soak;

/// Tells a process that it is a rank, and which worlds it is in: `0 20`, from the first on, so many.
const ROLE: &str = "UNISONO_TEST_ROLE";
/// A job that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);
/// How many calls a world makes, before the next one begins.
const CALLS: usize = 500;
/// How many worlds a job has, one after the other; memory is looked at after the first few.
const WORLDS_OF_JOB: u64 = 8;
const WARM_UP: u64 = 3;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        let (first, worlds) = role.split_once(' ').expect("two numbers");
        processes(first.parse().unwrap(), worlds.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |name: &'static str, test: fn(&'static str)| {
        Trial::test(name, move || {
            test(name);
            Ok(())
        })
    };
    let trials = vec![
        trial("all-reduces over threads", over_threads),
        trial("all-reduces over shared memory", |name| over_processes(name, &[])),
        trial("all-reduces over mpi", |name| over_processes(name, &[("UNISONO_TRANSPORT", "mpi")])),
        trial("all-reduces over shm+tcp", |name| over_processes(name, &[("UNISONO_NETWORK", "tcp")])),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn ranks(world: u64) -> usize {
    2 + (world % 3) as usize
}

fn over_threads(name: &str) {
    let soak = Soak::from_environment();
    let worlds = soak.cases(24);
    let (made, warm) = (Mutex::new(0), Mutex::new(None));
    worlds.make(1, |world| {
        unisono::threads(ranks(world), |comm| all_reduces(comm, soak.seed, world, CALLS));
        let mut made = made.lock().unwrap();
        *made += 1;
        if *made == WARM_UP {
            *warm.lock().unwrap() = Some(Held::now());
        }
    });
    let made = *made.lock().unwrap();
    if let Some(warm) = *warm.lock().unwrap() {
        Held::now().assert_no_more_than(warm, name);
    }
    worlds.tell(name, &[(made * CALLS as u64, "all-reduces"), (made, "worlds")]);
}

fn over_processes(name: &str, settings: &[(&str, &str)]) {
    let soak = Soak::from_environment();
    let (jobs, made) = (soak.cases(3), Mutex::new(0));
    jobs.make(1, |job| {
        let program = std::env::current_exe().expect("a program knows its path");
        let mut command = launch::mpirun(ranks(job), program.to_str().expect("a path in UTF-8"));
        let role = format!("{} {WORLDS_OF_JOB}", job * WORLDS_OF_JOB);
        command.env(ROLE, role).envs(settings.iter().copied());
        if settings.iter().any(|&(_, value)| value == "tcp") {
            command.env("UNISONO_NODES", format!("1,{}", ranks(job) - 1));
        }
        launch::run(command, DEADLINE).expect_success();
        *made.lock().unwrap() += WORLDS_OF_JOB;
    });
    let made = *made.lock().unwrap();
    jobs.tell(name, &[(made * CALLS as u64, "all-reduces"), (made, "worlds")]);
}

/// One world after the other, each on a communicator of its own.
fn processes(first: u64, worlds: u64) {
    let (universe, _) =
        unisono::mpi::initialize_with_threading(Threading::Serialized).expect("MPI is not up");
    let (seed, mut warm) = (Soak::from_environment().seed, None);
    for world in first..first + worlds {
        all_reduces(Communicator::attach(&universe.world()).unwrap(), seed, world, CALLS);
        if world - first + 1 == WARM_UP {
            warm = Some(Held::now());
        }
    }
    let warm = warm.expect("a job has more worlds than it takes to warm up");
    Held::now().assert_no_more_than(warm, "a rank");
}
