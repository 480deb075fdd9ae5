//! Programs that use a communicator for a part of their work. The library changes no process state, starts no thread, and such
//! programs continue when ranks fail.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use unisono::{Algorithm, Communicator, Error, OnFailure, ReduceOp, Result, Unisono};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};

const DEADLINE: Duration = Duration::from_secs(60);
/// The longest time in which ranks must detect the end of another: half a second, and a margin for a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// The limit between machines, and the limit for calls of groups, which are compared for longer than a report of another machine is
/// valid.
const SOON_ON_MACHINES: Duration = Duration::from_secs(5);
const SOON_IN_GROUPS: Duration = Duration::from_secs(20);
/// The deadline of a call that a rank does not make.
const WAIT: Duration = Duration::from_secs(4);
/// The prefix of roles of a rank on a separate machine.
const ON_MACHINE: &str = "on a machine: ";
const RANKS: usize = 3;
const COUNT: usize = 100_000;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![Test::new("a world of threads starts no thread", threads)];
    for (role, end, cause) in [
        ("waits in a collective", Some(128 + 9), KILLED),
        ("waits in a group", Some(128 + 9), KILLED),
        ("waits in a group of a dropped world", Some(128 + 9), KILLED),
        ("waits for a message", Some(128 + 9), KILLED),
        ("waits for a request", Some(128 + 9), KILLED),
        ("works in a pass", Some(128 + 9), KILLED),
        ("aborts", Some(128 + 6), KILLED),
        ("exits", Some(0), KILLED),
        ("panics", Some(101), "it panicked"),
        ("leaves", Some(0), "rank 1 has left the world"),
    ] {
        tests.push(Test::new(format!("a rank that {role}"), move || fails(role, end, cause)));
    }
    for (role, ranks) in [
        ("killed, kept", 4),
        ("killed, dropped", 6),
        ("late", 3),
        ("calls", 4),
        ("in flight", 4),
        ("groups", 3),
    ] {
        let test = Test::new(format!("ranks of several machines: {role}"), move || on_machines(role, ranks));
        tests.push(test.unless(launch::no_containers));
    }
    // It takes half a minute, the time after which memory is reclaimed from a rank that is still accessing it.
    tests.push(Test::new(format!("a rank that {IS_STOPPED}"), is_stopped).deep());
    for late in [0, 1] {
        tests.push(Test::new(format!("rank {late} is late"), move || is_late(late)).timed());
    }
    tests
}

const IS_STOPPED: &str = "is stopped inside of a pass";
const KILLED: &str = "its process was killed, has crashed or called exit";

/// Checks that the other ranks get an error with the cause, that their programs continue, and that the library prints nothing.
fn fails(role: &str, end: Option<i32>, cause: &str) {
    let Ended { status, stdout, stderr } = start(role, &[]);
    let output = format!("{status}\n{stdout}\n{stderr}");
    assert_eq!(status.code(), end, "{output}");
    let go_on = stdout.lines().filter(|line| line.starts_with("goes on after ") && line.contains(cause));
    assert_eq!(go_on.count(), RANKS - 1, "{output}");
    assert!(!stderr.contains("unisono: rank"), "{output}");
}

/// Runs each rank on a separate machine. Every survivor must soon name the failed rank, whether the others keep or drop their
/// communicators.
fn on_machines(role: &str, ranks: usize) {
    let mut command = launch::containers(ranks, &launch::this_program());
    suite::play(&mut command, "embedded", &format!("{ON_MACHINE}{role}")).env("UNISONO_WARNINGS", "off");
    // Ranks report four times in this time.
    command.env("UNISONO_WARN_S", "0.5");
    let Ended { status, stdout, stderr } = launch::run(command, DEADLINE);
    let output = format!("{status}\n{stdout}\n{stderr}");
    let survivors = if matches!(role, "late" | "calls" | "groups") { ranks } else { ranks - 1 };
    let is_expected = |line: &&str| match role {
        "calls" => line.contains("called all-reduce #") && line.contains("called broadcast #"),
        "groups" => {
            line.contains("called barrier #0, in a group of ranks [0, 1, 2], but rank 1 called all-reduce #")
        }
        "late" => line.starts_with("names Some(1) "),
        _ => line.starts_with("names Some(1) ") && line.contains(KILLED),
    };
    assert_eq!(stdout.lines().filter(is_expected).count(), survivors, "{output}");
}

/// Plays a rank that is alone on its machine. Its messages are too large for the kernel's buffers.
fn play_on_machines(role: &str) -> ExitCode {
    let builder = Unisono::builder().on_failure(OnFailure::ReturnError).algorithm(Algorithm::Ring);
    let mut comm = builder.timeout(DEADLINE).processes().unwrap();
    assert_eq!(comm.transport(), "tcp");
    let mut array = vec![1.0_f32; 40 * COUNT];
    comm.all_reduce(&mut array, ReduceOp::Max).unwrap();
    comm.barrier().unwrap();
    let began = Instant::now();
    let error = match role {
        // Rank 0 waits for rank 2, which waits for rank 1.
        "late" => {
            std::thread::sleep([0, 2 * WAIT.as_secs(), 1].map(Duration::from_secs)[comm.rank()]);
            comm.call().timeout(WAIT).all_reduce(&mut array, ReduceOp::Max).map(drop)
        }
        "calls" if comm.rank() == 1 => comm.broadcast(&mut array, 3).map(drop),
        "groups" if comm.rank() != 1 => comm.group(&[0, 1, 2]).and_then(|group| group.unwrap().barrier()),
        "groups" => {
            comm.group(&[0, 1, 2]).and_then(|_group| comm.all_reduce(&mut array, ReduceOp::Max).map(drop))
        }
        "calls" => comm.all_reduce(&mut array, ReduceOp::Max).map(drop),
        _ if comm.rank() == 1 => launch::kill_this_process(),
        "in flight" => {
            let mut start = || comm.all_reduce_async(vec![1.0_f32; 40 * COUNT], ReduceOp::Max);
            let (first, second) = (start().unwrap(), start().unwrap());
            let error = first.wait().unwrap_err();
            assert_eq!(second.wait().unwrap_err().failed_rank(), error.failed_rank(), "{error}");
            Err(error)
        }
        _ => comm.all_reduce(&mut array, ReduceOp::Max).map(drop),
    }
    .unwrap_err();
    let took = began.elapsed();
    let soon = if matches!(role, "late" | "groups") { SOON_IN_GROUPS } else { SOON_ON_MACHINES };
    assert!(took < soon, "{took:?}: {error}");
    let later = comm.barrier().unwrap_err();
    assert!(matches!(role, "calls" | "groups") || later.failed_rank() == Some(1), "{later}");
    println!("names {:?} after {} ms: {error}", error.failed_rank(), took.as_millis());
    if role != "killed, dropped" {
        // Until then, the others must not be informed by the end of this rank's connections.
        std::thread::sleep(SOON_ON_MACHINES);
    }
    ExitCode::SUCCESS
}

/// Checks that the others get an error, and can use their registered memory again.
fn is_stopped() {
    let Ended { status, stdout, stderr } = start(IS_STOPPED, &[]);
    let output = format!("{status}\n{stdout}\n{stderr}");
    assert_eq!(
        stdout.lines().filter(|line| line.starts_with("goes on after ")).count(),
        RANKS - 1,
        "{output}"
    );
    assert_eq!(status.code(), Some(128 + 9), "{output}");
}

/// Plays a rank that makes passes until rank 1 is stopped.
fn play_is_stopped() -> ExitCode {
    let builder = Unisono::builder().on_failure(OnFailure::ReturnError).algorithm(Algorithm::RoundRobin);
    let mut comm = builder.timeout(Duration::from_secs(1)).processes().unwrap();
    let mut processes = [0; RANKS];
    processes[comm.rank()] = u64::from(std::process::id());
    comm.all_gather(&mut processes).unwrap();
    if comm.rank() == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            launch::signal_process("STOP", std::process::id());
        });
    }
    let mut array = comm.alloc::<f32>(1 << 22).unwrap();
    let began = Instant::now();
    let error = loop {
        if let Err(error) = comm.all_reduce(&mut array, ReduceOp::Max) {
            break error;
        }
    };
    array.fill(7.0);
    std::thread::sleep(SOON);
    assert!(array.iter().all(|&value| value == 7.0));
    drop((array, comm));
    println!("goes on after {} ms: {error}", began.elapsed().as_millis());
    std::thread::sleep(SOON);
    launch::signal_process("KILL", processes[1] as u32);
    ExitCode::SUCCESS
}

fn start(role: &str, settings: &[(&str, &str)]) -> Ended {
    let mut command = launch::processes(RANKS, &launch::this_program());
    suite::play(&mut command, "embedded", role).env("UNISONO_WARNINGS", "off");
    launch::run(command.envs(settings.iter().copied()), DEADLINE)
}

/// Checks that one waiting rank warns of a late rank.
fn is_late(late: usize) {
    let Ended { stderr, .. } = start(&format!("late {late}"), &[("UNISONO_WARN_S", "0.5")]).expect_success();
    let warnings = stderr.lines().filter(|line| line.contains(&format!("rank {late} is missing"))).count();
    assert!((1..=3).contains(&warnings), "at 0.5 s, at 1 s and, for a very late rank, at 2 s: {stderr}");
}

/// Returns the signals for which this process has handlers, except those above 31, which the C library uses.
fn handlers() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() as u32 & (u32::MAX >> 1)
}

fn sockets() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

fn threads_here() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Checks that a world of threads starts no threads besides the program's.
fn threads() {
    let before = threads_here();
    let world = Unisono::builder().threads(2).unwrap();
    assert_eq!(threads_here(), before);
    let ended = std::thread::scope(|scope| {
        let rank = |mut comm: Communicator| scope.spawn(move || comm.barrier().map(|()| threads_here()));
        let started: Vec<_> = world.into_iter().map(rank).collect();
        started.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert!(ended.iter().all(|&threads| threads <= before + 2), "{ended:?} after {before}");
}

/// Plays a rank that makes calls until rank 1 ends.
pub(crate) fn play(role: &str) -> ExitCode {
    if let Some(role) = role.strip_prefix(ON_MACHINE) {
        return play_on_machines(role);
    }
    if role == IS_STOPPED {
        return play_is_stopped();
    }
    let before = (handlers(), sockets());
    // With an algorithm that ranks carry out in a single pass.
    let builder = Unisono::builder().on_failure(OnFailure::ReturnError).algorithm(Algorithm::RoundRobin);
    let mut comm = builder.processes().unwrap();
    assert_eq!((handlers(), sockets(), threads_here()), (before.0, before.1, 1));
    let mut array = vec![1.0_f32; COUNT];
    comm.all_reduce(&mut array, ReduceOp::Max).unwrap();
    comm.barrier().unwrap();
    assert_eq!((handlers(), sockets(), threads_here()), (before.0, before.1, 1));
    if let Some(late) = role.strip_prefix("late ") {
        if comm.rank().to_string() == late {
            std::thread::sleep(Duration::from_millis(1500));
        }
        comm.barrier().unwrap();
        assert_eq!(threads_here(), 1);
        return ExitCode::SUCCESS;
    }
    if role == "leaves" && comm.rank() == 1 {
        return ExitCode::SUCCESS;
    }
    let (error, took) = match role {
        "waits in a group" => {
            let mut group = comm.group(&[2, 1, 0]).unwrap().unwrap();
            until_it_fails(&mut group, role, |comm| comm.all_reduce(&mut array, ReduceOp::Max).map(drop))
        }
        "waits in a group of a dropped world" => {
            let group = comm.group(&[2, 1, 0]).unwrap().unwrap();
            // Also before another rank begins to wait.
            comm.barrier().unwrap();
            drop(comm);
            comm = group;
            until_it_fails(&mut comm, role, |comm| comm.all_reduce(&mut array, ReduceOp::Max).map(drop))
        }
        "waits for a message" => {
            until_it_fails(&mut comm, role, |comm| comm.receive(&mut array, 1).map(drop))
        }
        "waits for a request" => until_it_fails(&mut comm, role, |comm| {
            let request = comm.all_reduce_async(vec![1.0_f32; COUNT], ReduceOp::Max)?;
            assert_eq!(threads_here(), 2, "this one and the communication thread");
            request.wait().map(drop)
        }),
        "works in a pass" => {
            if comm.rank() == 1 {
                std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    launch::kill_this_process();
                });
            }
            let mut array = comm.alloc::<f32>(1 << 22).unwrap();
            let call = |comm: &mut Communicator| comm.all_reduce(&mut array, ReduceOp::Max).map(drop);
            until_it_fails(&mut comm, role, call)
        }
        _ => until_it_fails(&mut comm, role, |comm| comm.all_reduce(&mut array, ReduceOp::Max).map(drop)),
    };
    assert!(took < SOON, "{took:?}: {error}");
    assert!(comm.barrier().is_err());
    let began = Instant::now();
    drop(comm);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    if role == "waits in a collective" {
        // Longer than a watchdog that ends programs would allow.
        std::thread::sleep(Duration::from_secs(3));
    }
    println!("goes on after {} ms: {error}", took.as_millis());
    ExitCode::SUCCESS
}

/// Makes calls until one fails, since rank 1 ends. Returns the error and the duration of the failed call.
fn until_it_fails(
    comm: &mut Communicator,
    role: &str,
    mut call: impl FnMut(&mut Communicator) -> Result<()>,
) -> (Error, Duration) {
    match role {
        _ if comm.rank() != 1 => {}
        "works in a pass" => {}
        "aborts" => std::process::abort(),
        "exits" => std::process::exit(0),
        "panics" => panic!("on purpose"),
        _ => launch::kill_this_process(),
    }
    loop {
        let began = Instant::now();
        if let Err(error) = call(comm) {
            assert!(matches!(error, Error::Aborted { .. } | Error::Left { .. }), "{error}");
            return (error, began.elapsed());
        }
    }
}
