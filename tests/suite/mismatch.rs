//! Ranks whose calls differ at random: none hangs, none has a wrong result, and each gets an error that names both calls.

use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unisono::Error;
use unisono_testing::launch;
use unisono_testing::soak::Soak;
use unisono_testing::suite::{self, Test, is_deep};

use crate::common::no_ucx;

mod case;

use case::{Case, Found};

/// The variable that makes ranks play the case in a group of all of them.
const IN_GROUP: &str = "UNISONO_TEST_IN_GROUP";
/// A job that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(120);
/// The number of concurrent worlds, which mostly wait.
const LANES: usize = 8;

pub(crate) fn tests() -> Vec<Test> {
    let test = |name: &'static str, test: fn(&str)| Test::new(name, move || test(name));
    vec![
        test("over threads", over_threads),
        test("over processes without MPI", over_processes),
        test("in a group of processes", in_group),
        test("over shared memory", over_shared_memory),
        test("over mpi", over_messages),
        test("over shm+mpi", over_both),
        test("over shm+tcp without MPI", over_connections),
        test("over shm+ucx without MPI", over_ucx).unless(no_ucx),
    ]
}

/// The counts of all ranks.
#[derive(Debug, Default)]
struct Counts {
    cases: AtomicU64,
    own: AtomicU64,
    notified: AtomicU64,
    early: AtomicU64,
}

impl Counts {
    fn add(&self, Found { own, notified, early }: Found) {
        self.own.fetch_add(own, Ordering::Relaxed);
        self.notified.fetch_add(notified, Ordering::Relaxed);
        self.early.fetch_add(early, Ordering::Relaxed);
    }

    fn case(&self) {
        self.cases.fetch_add(1, Ordering::Relaxed);
    }

    fn of_ranks(&self) -> [(u64, &'static str); 4] {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            (count(&self.cases), "mismatches"),
            (count(&self.own), "ranks that detected it themselves"),
            (count(&self.notified), "ranks that were notified"),
            (count(&self.early), "calls completed before it could be detected"),
        ]
    }
}

fn over_threads(name: &str) {
    let soak = Soak::from_environment();
    let (cases, counts) = (soak.cases(if is_deep() { 1000 } else { 200 }), Counts::default());
    cases.make(LANES, |number| {
        let case = Case::new(soak.seed, number, "threads");
        let started = Instant::now();
        unisono::threads(case.ranks, |mut comm| case.play(&mut comm))
            .into_iter()
            .for_each(|found| counts.add(found));
        assert!(started.elapsed() < case::DEADLINE, "{case:?} took {:?}", started.elapsed());
        counts.case();
    });
    cases.report(name, &counts.of_ranks());
}

fn over_processes(name: &str) {
    in_jobs(name, "processes", launch::processes, &[]);
}

fn in_group(name: &str) {
    in_jobs(name, "processes", launch::processes, &[(IN_GROUP, "")]);
}

fn over_connections(name: &str) {
    in_jobs(name, "shm+tcp", launch::processes, &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,2")]);
}

fn over_ucx(name: &str) {
    let settings = [("UNISONO_NETWORK", "ucx"), ("UNISONO_NODES", "2,2"), ("UCX_TLS", "tcp")];
    in_jobs(name, "shm+ucx", launch::processes, &settings);
}

fn over_shared_memory(name: &str) {
    in_jobs(name, "shm", launch::mpirun, &[]);
}

fn over_messages(name: &str) {
    in_jobs(name, "mpi", launch::mpirun, &[("UNISONO_TRANSPORT", "mpi")]);
}

fn over_both(name: &str) {
    in_jobs(name, "shm+mpi", launch::mpirun, &[("UNISONO_NODES", "2,2")]);
}

/// A command that starts this many ranks of a program.
type Launcher = fn(usize, &str) -> Command;

/// Plays each case in a separate job, since a rank that fails ends the job and with it the ranks that could not detect the
/// mismatch.
fn in_jobs(name: &str, world: &'static str, launcher: Launcher, settings: &[(&str, &str)]) {
    let soak = Soak::from_environment();
    // Ten cases in a row are one of each kind.
    let (cases, counts) = (soak.cases(if is_deep() { 40 } else { 10 }), Counts::default());
    cases.make(2, |number| {
        let case = Case::new(soak.seed, number, world);
        let ended = launched(launcher, case.ranks, &number.to_string(), settings);
        let report = format!("{case:?}\n{}\n{}", ended.stdout, ended.stderr);
        assert!(!ended.status.success(), "{report}");
        assert!(!ended.stderr.contains("panicked"), "{report}");
        let is_named = |line: &str| case.names_both(line);
        assert!(ended.stderr.lines().any(is_named), "{report}");
        ended.stdout.lines().filter_map(Found::read).for_each(|found| counts.add(found));
        counts.case();
    });
    cases.report(name, &counts.of_ranks());
}

fn launched(launcher: Launcher, ranks: usize, role: &str, settings: &[(&str, &str)]) -> launch::Ended {
    let mut command = launcher(ranks, &launch::this_program());
    suite::play(&mut command, "mismatch", role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// Plays the case with this number.
pub(crate) fn play(number: &str) -> ExitCode {
    let number = number.parse().expect("a number");
    let mut comm = unisono::init().unwrap();
    let world = match comm.transport() {
        "shm" if !comm.has_mpi() => "processes",
        transport => transport,
    };
    let case = Case::new(Soak::from_environment().seed, number, world);
    if std::env::var(IN_GROUP).is_ok() {
        // A rank that has its group may fail before the last rank has it.
        let found = match comm.split(Some(0), 0) {
            Ok(group) => case.play(&mut group.expect("all are in it")),
            Err(error @ Error::Aborted { .. }) if case.names_both(&error.to_string()) => Found::notified(),
            Err(error) => panic!("rank {} has no group: {error}", comm.rank()),
        };
        found.print();
    } else {
        case.play(&mut comm).print();
    }
    ExitCode::SUCCESS
}
