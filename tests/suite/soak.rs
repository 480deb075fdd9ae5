//! Very many small random all-reduces: none is wrong, and memory does not grow.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use unisono::Communicator;
use unisono::mpi::Threading;
use unisono_testing::launch;
use unisono_testing::soak::Soak;
use unisono_testing::suite::{self, Test, is_deep};

use crate::common::small::{Held, all_reduces};

/// A job that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(300);
/// The number of calls of a world, before the next world starts.
const CALLS: usize = 500;
/// The number of successive worlds of a job. The baseline of memory is measured after the first few.
const WORLDS_OF_JOB: u64 = 8;
const WARM_UP: u64 = 3;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("over threads", || over_threads("over threads")),
        Test::new("over shared memory", || over_processes("over shared memory", &[])),
        Test::new("over mpi", || over_processes("over mpi", &[("UNISONO_TRANSPORT", "mpi")])),
        Test::new("over shm+tcp", || over_processes("over shm+tcp", &[("UNISONO_NETWORK", "tcp")])),
    ]
}

fn ranks(world: u64) -> usize {
    2 + (world % 3) as usize
}

fn over_threads(name: &str) {
    let soak = Soak::from_environment();
    let worlds = soak.cases(if is_deep() { 24 } else { 9 });
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
    worlds.report(name, &[(made * CALLS as u64, "all-reduces"), (made, "worlds")]);
}

fn over_processes(name: &str, settings: &[(&str, &str)]) {
    let soak = Soak::from_environment();
    let (jobs, made) = (soak.cases(if is_deep() { 3 } else { 1 }), Mutex::new(0));
    jobs.make(1, |job| {
        let mut command = launch::mpirun(ranks(job + 1), &launch::this_program());
        let role = format!("{} {WORLDS_OF_JOB}", job * WORLDS_OF_JOB);
        suite::play(&mut command, "soak", &role).envs(settings.iter().copied());
        if settings.iter().any(|&(_, value)| value == "tcp") {
            command.env("UNISONO_NODES", format!("1,{}", ranks(job + 1) - 1));
        }
        launch::run(command, DEADLINE).expect_success();
        *made.lock().unwrap() += WORLDS_OF_JOB;
    });
    let made = *made.lock().unwrap();
    jobs.report(name, &[(made * CALLS as u64, "all-reduces"), (made, "worlds")]);
}

/// Plays worlds one after the other, each on its own communicator. The role `0 20` has the first world and the number of worlds.
pub(crate) fn play(role: &str) -> ExitCode {
    let (first, worlds) = role.split_once(' ').expect("two numbers");
    let (first, worlds): (u64, u64) = (first.parse().unwrap(), worlds.parse().unwrap());
    let (universe, _) =
        unisono::mpi::initialize_with_threading(Threading::Serialized).expect("MPI is not initialised yet");
    let (seed, mut warm) = (Soak::from_environment().seed, None);
    for world in first..first + worlds {
        all_reduces(Communicator::attach(&universe.world()).unwrap(), seed, world, CALLS);
        if world - first + 1 == WARM_UP {
            warm = Some(Held::now());
        }
    }
    let warm = warm.expect("a job has more worlds than the warm-up");
    Held::now().assert_no_more_than(warm, "a rank");
    ExitCode::SUCCESS
}
