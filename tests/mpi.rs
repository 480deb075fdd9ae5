//! Worlds under mpirun. This program launches itself: without a role it is the test runner, with one it is
//! a rank.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono::status::Flight;
use unisono::{Algorithm, Communicator, ReduceOp};

mod common;

use common::disagreements::{DISAGREEMENTS, OTHER_LABELS};
use common::memory::Memory;
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    match std::env::var(ROLE) {
        Ok(role) => play(&role),
        Err(_) => libtest_mimic::run(&arguments(), trials()).exit_code(),
    }
}

/// One test at a time: each has more ranks than there are cores.
fn arguments() -> Arguments {
    Arguments { test_threads: Some(1), ..Arguments::from_args() }
}

fn play(role: &str) -> ExitCode {
    if role == "left" {
        return left();
    }
    let mut comm = unisono::init().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(3)
    });
    match role {
        "conformance" => common::conformance(&mut comm, Memory::Slices),
        "registered" => {
            for memory in [Memory::Registered, Memory::Mixed, Memory::Parts] {
                common::conformance(&mut comm, memory);
            }
        }
        "thresholds" => {
            Memory::ALL.into_iter().for_each(|memory| common::thresholds::cross(&mut comm, memory));
        }
        "bits" => {
            common::bits::agree(&mut comm, Memory::Slices);
            common::bits::agree(&mut comm, Memory::Mixed);
        }
        "blocks" => {
            common::bits::agree_in_blocks(&mut comm, Memory::Slices);
            common::bits::agree_in_blocks(&mut comm, Memory::Mixed);
        }
        "groups" => common::groups::conformance(&mut comm),
        "groups conform" => common::groups::inside(&mut comm),
        "stress" => common::stress::calls(&mut comm, 300),
        "vendors" => common::vendors::agree(&mut comm),
        "in flight" => common::in_flight::conformance(&mut comm),
        "point to point" => common::point_to_point::conformance(&mut comm),
        "transport" => println!("transport: {}", comm.transport()),
        "drops" => drops(comm),
        "killed" => killed(&mut comm),
        "long" => long_messages(&mut comm),
        "deadlines" => deadlines(&mut comm),
        "nodes" => assert_eq!(comm.topology().nodes(), 2),
        "count" | "dtype" | "op" | "algorithm" | "vendor" | "order" | "label" | "message" => {
            common::disagreements::disagree(role, &mut comm);
        }
        "panic" => {
            assert_ne!(comm.rank(), 1, "on purpose");
            let _ = comm.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum);
        }
        "late" => {
            comm.set_timeout(Duration::from_secs(1));
            if comm.rank() == 0 {
                std::thread::sleep(Duration::from_secs(5));
            }
            comm.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum).unwrap();
        }
        _ => panic!("no such role: {role}"),
    }
    ExitCode::SUCCESS
}

/// A rank is in a quiet section for longer than others wait, and rank 0 does something for all.
fn deadlines(comm: &mut Communicator) {
    // Once all have begun.
    comm.barrier().unwrap();
    comm.set_timeout(Duration::from_millis(500));
    if comm.rank() == 1 {
        comm.quiet("validation", |_| std::thread::sleep(Duration::from_secs(1)));
    }
    comm.barrier().unwrap();
    let value = comm.on_rank0("reading", || {
        std::thread::sleep(Duration::from_secs(1));
        Ok::<_, String>(17)
    });
    assert_eq!(value.unwrap(), (comm.rank() == 0).then_some(17));
    let error = comm.on_rank0("writing", || Err::<(), _>("the disk is full")).unwrap_err().to_string();
    assert!(error.ends_with(": writing: the disk is full"), "{error}");
    comm.barrier().unwrap();
}

/// Rank 0 leaves, and the others need it. MPI stays up: when a rank aborts while another finalises, Open MPI 4's
/// mpirun may wait for itself for ever.
fn left() -> ExitCode {
    let universe = unisono::mpi::initialize().expect("MPI is not up");
    let mut comm = Communicator::attach(&universe.world()).unwrap();
    if comm.rank() == 0 {
        drop(comm);
        std::thread::sleep(Duration::from_secs(5));
    } else {
        comm.all_reduce(&mut vec![1_u8; 1 << 20], ReduceOp::Sum).unwrap();
    }
    ExitCode::SUCCESS
}

/// Messages of many segments, whole and not, sent and reduced: the limit of a segment is lowered to a cache
/// line.
fn long_messages(comm: &mut Communicator) {
    for algorithm in Algorithm::ALL {
        comm.set_choice(algorithm).unwrap();
        let mut buffer: Vec<f64> = (0..20_011).map(|index| f64::from(index % 1000)).collect();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        let ranks = comm.ranks() as f64;
        assert!(buffer.iter().enumerate().all(|(index, &sum)| sum == (index % 1000) as f64 * ranks));
    }
}

/// Registered memory that comes and goes leaves nothing, and may outlive its communicator.
fn drops(mut comm: Communicator) {
    const BYTES: usize = 1 << 20;
    assert!(comm.alloc::<u8>(1 << 50).is_err(), "more than any machine has");
    let round = |comm: &mut Communicator| {
        let (mut first, mut second) = (comm.alloc::<u8>(BYTES).unwrap(), comm.alloc::<u8>(BYTES).unwrap());
        comm.all_reduce(&mut first, ReduceOp::Sum).unwrap();
        comm.all_reduce(&mut second, ReduceOp::Max).unwrap();
    };
    let in_use = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        (files, pages.split(' ').next().unwrap().parse::<usize>().unwrap() * 4096)
    };
    round(&mut comm);
    round(&mut comm);
    let (files, bytes) = in_use();
    (0..64).for_each(|_| round(&mut comm));
    let (files_then, bytes_then) = in_use();
    assert_eq!(files_then, files);
    // What `malloc` reserves for another thread; and the others may not have noticed yet what this rank dropped last.
    const ARENA: usize = 64 << 20;
    assert!(bytes_then <= bytes + ARENA + 8 * BYTES, "{bytes_then} instead of {bytes} bytes are mapped");

    let mut kept = comm.alloc::<u64>(1000).unwrap();
    kept.fill(1);
    comm.all_reduce(&mut kept, ReduceOp::Sum).unwrap();
    let (ranks, unused) = (comm.ranks() as u64, comm.alloc::<u64>(1000).unwrap());
    drop(unused);
    drop(comm);
    assert!(kept.iter().all(|&sum| sum == ranks));
}

/// Works without end, until rank 1 is killed in the middle of it.
fn killed(comm: &mut Communicator) {
    println!("process {}", std::process::id());
    let mut array = comm.alloc::<f32>(1 << 20).unwrap();
    if comm.rank() == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            std::process::Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()
        });
    }
    loop {
        comm.all_reduce(&mut array, ReduceOp::Max).unwrap();
    }
}

fn launch(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let program = std::env::current_exe().expect("a program knows its path");
    let mut command = launch::mpirun(ranks, program.to_str().expect("a path in UTF-8"));
    command.env(ROLE, role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// What a world is called, its sizes and settings, and what its ranks do.
type World = (&'static str, RangeInclusive<usize>, Settings, &'static [&'static str]);
type Settings = &'static [(&'static str, &'static str)];

const SHARED: Settings = &[];
const MESSAGES: Settings = &[("UNISONO_TRANSPORT", "mpi")];
const EVEN: Settings = &[("UNISONO_NODES", "2,2")];
const UNEVEN: Settings = &[("UNISONO_NODES", "3,1")];

/// Where every call is made.
const WORLDS: [World; 11] = [
    ("shared memory", 1..=5, SHARED, &["conformance", "bits"]),
    ("shared memory", 2..=4, SHARED, &["stress", "in flight", "vendors"]),
    // What is chosen where nothing is said is one of the two below.
    ("shared memory", 2..=3, SHARED, &["registered", "blocks", "drops"]),
    ("memory that the kernel copies", 2..=3, COPIED, &["thresholds", "blocks"]),
    ("memory that it does not copy", 2..=3, NOT_COPIED, &["thresholds"]),
    ("messages", 2..=4, MESSAGES, &["conformance", "bits"]),
    ("messages", 3..=3, MESSAGES, &["blocks", "stress", "in flight"]),
    ("two and two", 4..=4, EVEN, &["conformance", "bits", "stress", "in flight", "vendors"]),
    ("three and one", 4..=4, UNEVEN, &["conformance", "bits", "blocks", "stress"]),
    ("connections", 3..=3, CONNECTED_ALONE, &["conformance", "bits", "blocks", "stress", "in flight"]),
    (
        "connected two and two",
        4..=4,
        CONNECTED,
        &["conformance", "registered", "bits", "stress", "in flight", "vendors", "deadlines"],
    ),
];

/// Where messages go from one rank to another, and where ranks make groups.
const WITH_MESSAGES_AND_GROUPS: [World; 9] = [
    ("shared memory", 2..=4, SHARED, &["point to point"]),
    ("memory that is not copied", 2..=2, NOT_COPIED, &["point to point"]),
    ("messages", 2..=4, MESSAGES, &["point to point"]),
    ("two and two", 4..=4, EVEN, &["point to point"]),
    ("messages", 4..=4, MESSAGES, &["groups", "groups conform"]),
    ("two and two", 4..=4, EVEN, &["groups"]),
    ("connected two and two", 4..=4, CONNECTED, &["point to point", "groups", "groups conform"]),
    ("connections", 3..=3, CONNECTED_ALONE, &["point to point"]),
    ("one and two that are late", 3..=3, LATE, &["point to point"]),
];
/// Our own connections between nodes, though MPI would have something better on one machine.
const CONNECTED: Settings = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,2")];
const CONNECTED_ALONE: Settings = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")];
const LATE: Settings = &[("UNISONO_NODES", "1,2"), ("UNISONO_CHAOS", "seed=7,delay_us=300")];

/// Whatever the trial at the start says of how fast this kernel copies.
const COPIED: &[(&str, &str)] = &[("UNISONO_KERNEL_COPIES", "on")];
const NOT_COPIED: &[(&str, &str)] = &[("UNISONO_KERNEL_COPIES", "off")];

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        trials.push(Trial::test(name, move || {
            test();
            Ok(())
        }));
    };
    for (world, sizes, settings, roles) in WORLDS.into_iter().chain(WITH_MESSAGES_AND_GROUPS) {
        for ranks in sizes {
            for role in roles {
                let test = move || drop(launch(ranks, role, settings).expect_success());
                trial(format!("{role} over {world} at {ranks} ranks"), Box::new(test));
            }
        }
    }
    let transports =
        [(SHARED, "shm"), (MESSAGES, "mpi"), (EVEN, "shm+mpi"), (UNEVEN, "shm+mpi"), (CONNECTED, "shm+tcp")];
    for (settings, name) in transports {
        let test = move || {
            let stdout = launch(4, "transport", settings).expect_success().stdout;
            assert_eq!(stdout.matches(&format!("transport: {name}\n")).count(), 4, "{stdout}");
        };
        trial(format!("transport {name} with {settings:?}"), Box::new(test));
    }
    trial(
        "messages of many segments at 3 ranks".into(),
        Box::new(|| drop(launch(3, "long", &[("UNISONO_SEGMENT_BYTES", "64")]).expect_success())),
    );
    trial(
        "declared nodes".into(),
        Box::new(|| drop(launch(4, "nodes", &[("UNISONO_NODES", "2,2")]).expect_success())),
    );
    trial("nodes that do not add up".into(), Box::new(wrong_nodes));
    let [of_memory, of_messages] = OTHER_LABELS;
    for (world, settings, of_label) in [
        ("shared memory", SHARED, of_memory),
        ("messages", MESSAGES, of_messages),
        ("connections", CONNECTED_ALONE, of_memory),
    ] {
        for (role, one, other) in DISAGREEMENTS.into_iter().chain([of_label]) {
            let test = move || disagreement(role, settings, one, other);
            trial(format!("another {role} over {world}"), Box::new(test));
        }
        for (role, said) in
            [("panic", "has failed before its first collective: it panicked: "), ("late", "for rank 0")]
        {
            let test = move || drop(failure(role, settings, said));
            trial(format!("{role} over {world}"), Box::new(test));
        }
    }
    trial(
        "left over shared memory".into(),
        Box::new(move || drop(failure("left", SHARED, "rank 0 has left the world"))),
    );
    for (world, settings) in [("shared memory", SHARED), ("two and two", EVEN)] {
        let test = move || drop(launch(4, "deadlines", settings).expect_success());
        trial(format!("deadlines over {world}"), Box::new(test));
    }
    trial("flight recorders of all ranks at a deadline".into(), Box::new(flight_recorders));
    trial("a rank that is killed leaves nothing behind".into(), Box::new(nothing_is_left));
    trials
}

/// All of the job ends, and no file is left.
fn nothing_is_left() {
    let before = left::shared_files();
    let ended = launch(2, "killed", &[]);
    assert!(!ended.status.success());
    left::nothing(ended.stdout.lines().filter_map(|line| line.strip_prefix("process ")), 2, &before);
}

/// At a deadline there is a flight recorder of every rank, also of the one that is late, and they say which that is.
fn flight_recorders() {
    let folder = tempfile::tempdir().unwrap();
    let ended = failure("late", &[("UNISONO_FLIGHT_DIR", folder.path().to_str().unwrap())], "for rank 0");
    let said = format!("what each rank did last is in {}", folder.path().display());
    assert_eq!(ended.stderr.matches(&said).count(), 1, "{}", ended.stderr);
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    let findings = Flight::read(folder.path()).unwrap().findings();
    assert!(findings[0].contains("failed: ") && findings[0].contains("for rank 0"), "{findings:#?}");
    let late = findings.iter().find(|finding| finding.starts_with("rank 0 (process "));
    let late = late.unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(late.contains("never came to all-reduce #0, which ranks 1 and 2 wait in since "), "{late}");
}

fn wrong_nodes() {
    let ended = launch(2, "nodes", &[("UNISONO_NODES", "2,2")]);
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("which are 4, in a world of 2"), "{}", ended.stderr);
}

fn failure(role: &str, settings: &[(&str, &str)], said: &str) -> Ended {
    let ended = launch(3, role, settings);
    assert!(!ended.status.success(), "{}", ended.stdout);
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    ended
}

/// Ranks that disagree get no result, and the one that sees it names both sides.
fn disagreement(role: &str, settings: &[(&str, &str)], one: &str, other: &str) {
    let ended = failure(role, settings, "has failed");
    let named = ended.stderr.lines().any(|line| line.contains(one) && line.contains(other));
    assert!(named, "{one:?} and {other:?} in {}", ended.stderr);
    assert!(!ended.stdout.contains("result: true"), "{}", ended.stdout);
}
