//! Delayed and lost messages, and stopped ranks: results are right or every rank has an error, and no rank hangs.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use unisono::{Algorithm, Choice, Communicator, DType, Operation};
use unisono_testing::launch::{self, Ended};
use unisono_testing::random::Random;
use unisono_testing::soak::Soak;
use unisono_testing::suite::{self, Test, is_deep};

use crate::common::calls::{Made, Own, Ranks};
use crate::common::memory::Memory;
use crate::common::{no_ucx, reductions, small};

/// The variable that names the folder of stopped ranks' process numbers.
const PROCESSES: &str = "UNISONO_TEST_PROCESSES";
/// A job that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// The timeout of ranks for a message.
const TIMEOUT_S: &str = "1.5";
/// The number of calls that a world makes.
const CALLS: usize = 25;

/// Plays a case as a rank, or as a world of threads: `threads 7`, `faulty 7`, `stopped 7`.
pub(crate) fn play(role: &str) -> ExitCode {
    let (role, case) = role.split_once(' ').expect("a role and a number");
    let case = case.parse().expect("a number");
    match role {
        "threads" => {
            unisono::threads(ranks(case), |mut comm| print_progress(comm.rank(), &calls(&mut comm, case)));
        }
        "faulty" => {
            let mut comm = unisono::init().unwrap_or_else(|error| {
                // The settings are sent over links that may be cut.
                print_progress(usize::MAX, &Err(error));
                std::process::exit(1)
            });
            print_progress(comm.rank(), &calls(&mut comm, case));
        }
        "stopped" => stopped(case),
        _ => panic!("no such role: {role}"),
    }
    ExitCode::SUCCESS
}

pub(crate) fn tests() -> Vec<Test> {
    const MESSAGES: &[(&str, &str)] = &[("UNISONO_TRANSPORT", "mpi")];
    const EVEN: &[(&str, &str)] = &[("UNISONO_NODES", "2,2")];
    const CONNECTED: &[(&str, &str)] = &[("UNISONO_NODES", "2,2"), ("UNISONO_NETWORK", "tcp")];
    const UCX: &[(&str, &str)] = &[("UNISONO_NODES", "2,2"), ("UNISONO_NETWORK", "ucx"), ("UCX_TLS", "tcp")];
    let mut tests = Vec::new();
    for (name, over, short) in [
        ("faults over threads", Over::Threads, 16),
        ("faults over processes without MPI", Over::Processes, 4),
        ("faults over shared memory", Over::Mpi(&[]), 4),
        ("faults over mpi", Over::Mpi(MESSAGES), 4),
        ("faults over shm+mpi", Over::Mpi(EVEN), 4),
        ("faults over shm+tcp", Over::Mpi(CONNECTED), 4),
        ("faults over shm+ucx", Over::Mpi(UCX), 4),
    ] {
        let cases = if is_deep() { 4 * short } else { short };
        let test = Test::new(name, move || faults(name, over, cases));
        tests.push(if over == Over::Mpi(UCX) { test.unless(no_ucx) } else { test });
    }
    for (name, settings) in
        [("stopped ranks over shared memory", &[][..]), ("stopped ranks over mpi", MESSAGES)]
    {
        tests.push(Test::new(name, move || stops(name, settings)));
    }
    tests
}

/// The launch of a world's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Threads,
    /// Without MPI.
    Processes,
    Mpi(&'static [(&'static str, &'static str)]),
}

fn ranks(case: u64) -> usize {
    2 + (case % 3) as usize
}

/// Returns a job as this program, in a role.
fn job(over: Over, ranks: usize, role: &str) -> Command {
    let program = launch::this_program();
    let mut command = match over {
        Over::Threads => Command::new(&program),
        Over::Processes => launch::processes(ranks, &program),
        Over::Mpi(_) => launch::mpirun(ranks, &program),
    };
    if let Over::Mpi(settings) = over {
        command.envs(settings.iter().copied());
    }
    suite::play(&mut command, "chaos", role);
    command
}

/// Plays worlds whose messages are delayed and sometimes lost. Any four consecutive cases include every loss rate.
fn faults(name: &str, over: Over, short: u64) {
    const LOSSES: [&str; 4] = ["0", "0.0005", "0.01", "0.1"];
    let soak = Soak::from_environment();
    let (cases, right, failed) = (soak.cases(short), AtomicU64::new(0), AtomicU64::new(0));
    cases.make(if over == Over::Threads { 8 } else { 2 }, |case| {
        let mut random = Random::of(soak.seed, case);
        let (delay_us, lose) = (random.one_of(&[0, 50, 500]), LOSSES[case as usize % LOSSES.len()]);
        let chaos = format!("seed={},delay_us={delay_us},lose={lose}", random.bits());
        let is_two_and_two = matches!(over, Over::Mpi([("UNISONO_NODES", _), ..]));
        let ranks = if is_two_and_two { 4 } else { ranks(case) };
        let role = if over == Over::Threads { "threads" } else { "faulty" };
        let mut command = job(over, ranks, &format!("{role} {case}"));
        command
            .env("UNISONO_CHAOS", &chaos)
            .envs(["UNISONO_TIMEOUT_S", "UNISONO_FIRST_TIMEOUT_S"].map(|name| (name, TIMEOUT_S)));
        let ended = launch::run(command, DEADLINE);
        let all_right = judge(&ended, ranks, &format!("{chaos} at {ranks} ranks"), over);
        assert!(all_right || lose != "0", "a delay alone causes a failure: {ended:?}");
        if all_right { &right } else { &failed }.fetch_add(1, Ordering::Relaxed);
    });
    let (right, failed) = (right.into_inner(), failed.into_inner());
    // Worlds without faults prove nothing. If one message in ten is lost, some world must fail.
    let has_faults = soak.case.is_some() || failed > 0;
    assert!(has_faults, "none of {right} worlds had a fault: UNISONO_CHAOS injects none over {over:?}");
    cases.report(
        name,
        &[(right, "worlds all of whose results were right"), (failed, "whose ranks all had an error")],
    );
}

/// Prints the progress of a rank.
fn print_progress(rank: usize, came: &unisono::Result<bool>) {
    match came {
        Ok(true) => println!("rank {rank} is through"),
        Ok(false) => println!("rank {rank} was right, without a result for the others"),
        Err(error) => println!("rank {rank} has an error: {error}"),
    }
}

/// Returns whether all results were right. Otherwise it checks that every rank has an error and none reports success.
fn judge(ended: &Ended, ranks: usize, chaos: &str, over: Over) -> bool {
    let report = format!("{chaos}\n{}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{report}");
    let count = |what: &str| ended.stdout.matches(what).count();
    let (through, right, errors) = (count("is through"), count("was right"), count("has an error"));
    // A job that ends while its world starts prints nothing.
    if errors == 0 && right == 0 && ended.status.success() {
        assert_eq!(through, ranks, "{report}");
        return true;
    }
    assert!(
        through < ranks && (errors == 0 || through == 0),
        "only a part of the ranks is through: {report}"
    );
    match over {
        Over::Threads => assert_eq!(through + right + errors, ranks, "{report}"),
        Over::Processes | Over::Mpi(_) => assert!(!ended.status.success(), "{report}"),
    }
    false
}

/// Makes matching calls, and checks each result. Then makes a barrier, and returns whether this rank completed it: all ranks have
/// then completed the calls.
fn calls(comm: &mut Communicator, case: u64) -> unisono::Result<bool> {
    let mut common = Random::of(case, 0);
    let mut own = Random::of(case, 1 + comm.rank() as u64);
    for number in 0..CALLS {
        let algorithm = common.one_of(&Algorithm::ALL);
        let longest = common.one_of(&[10, 1000, 10_000, 100_000]);
        let dtype = common.one_of(&DType::ALL);
        let call = Made {
            operation: Operation::AllReduce,
            choice: Choice::from(algorithm),
            dtype,
            op: common.one_of(&reductions(dtype)),
            count: common.below(longest),
            label: "",
        };
        let own = Own { memory: own.one_of(&Memory::ALL), in_flight: own.once_in(3) };
        call.make(comm, own, number, Ranks::Agree)?;
    }
    Ok(comm.barrier().is_ok())
}

/// Ranks that are stopped at random and continue.
fn stops(name: &str, settings: &'static [(&'static str, &'static str)]) {
    let soak = Soak::from_environment();
    let (cases, stops, calls) =
        (soak.cases(if is_deep() { 2 } else { 1 }), AtomicU64::new(0), AtomicU64::new(0));
    cases.make(1, |case| {
        let folder = tempfile::tempdir().unwrap();
        let ranks = ranks(case + 1);
        let mut command = job(Over::Mpi(settings), ranks, &format!("stopped {case}"));
        command.env(PROCESSES, folder.path());
        let ended = AtomicBool::new(false);
        let job = std::thread::scope(|scope| {
            let job = scope.spawn(|| {
                let job = launch::run(command, DEADLINE);
                ended.store(true, Ordering::Relaxed);
                job
            });
            let stopped = stop_and_go(folder.path(), ranks, &ended, Random::of(soak.seed, case));
            stops.fetch_add(stopped, Ordering::Relaxed);
            job.join().unwrap()
        });
        let job = job.expect_success();
        let made = job.stdout.lines().filter_map(|line| line.strip_prefix("calls: "));
        calls.fetch_add(made.map(|calls| calls.parse::<u64>().unwrap()).sum::<u64>(), Ordering::Relaxed);
    });
    let (stops, calls) = (stops.into_inner(), calls.into_inner());
    assert!(stops > 0 && calls > 0, "{stops} stops, {calls} calls");
    cases.report(name, &[(stops, "stops"), (calls, "calls, all right")]);
}

/// Repeatedly stops one or several ranks for a moment, until the job has ended. Returns the number of stops.
fn stop_and_go(folder: &Path, ranks: usize, ended: &AtomicBool, mut random: Random) -> u64 {
    let mut stopped = 0;
    let program = std::env::current_exe().unwrap();
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(random.below(60) as u64));
        let names = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
        let processes: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        if processes.len() < ranks {
            continue;
        }
        let is_ours = |process: &&String| {
            std::fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|path| path == program)
        };
        let some: Vec<_> = processes.iter().filter(is_ours).filter(|_| random.once_in(2)).collect();
        let send = |signal: &str| {
            some.iter().for_each(|process| {
                // The process may have ended meanwhile.
                let _ = Command::new("kill").args([signal, process]).output();
            });
        };
        send("-STOP");
        std::thread::sleep(Duration::from_millis(random.below(300) as u64));
        send("-CONT");
        stopped += some.len() as u64;
    }
    stopped
}

/// All-reduces for a few seconds, while this rank and the others are stopped at random.
fn stopped(case: u64) {
    let (universe, _) = unisono::mpi::initialize_with_threading(unisono::mpi::Threading::Serialized)
        .expect("MPI is not initialised yet");
    let folder = std::env::var_os(PROCESSES).expect("a folder for process numbers");
    std::fs::write(Path::new(&folder).join(std::process::id().to_string()), "").unwrap();
    let began = Instant::now();
    let (mut world, mut calls) = (0, 0);
    loop {
        let mut comm = Communicator::attach(&universe.world()).unwrap();
        let mut goes_on = [u8::from(began.elapsed() < Duration::from_secs(4))];
        comm.broadcast(&mut goes_on, 0).unwrap();
        if goes_on == [0] {
            break;
        }
        small::all_reduces(comm, case, world, 200);
        (world, calls) = (world + 1, calls + 200);
    }
    println!("calls: {calls}");
}
