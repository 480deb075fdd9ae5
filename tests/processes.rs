//! Worlds of processes without MPI: whatever sets RANK and WORLD_SIZE starts them. This program launches itself: without a role it
//! is the test runner, with one it is a rank.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use unisono::compress::{Compressor, Levels};
use unisono::{Communicator, ReduceOp};

mod common;

use common::memory::Memory;
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(120);
/// How long ranks may take to see that another has ended.
const SOON: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match std::env::var(ROLE) {
        Ok(role) => play(&role),
        Err(_) => {
            // Each has more ranks than there are cores.
            let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
            libtest_mimic::run(&arguments, trials()).exit_code()
        }
    }
}

fn play(role: &str) -> ExitCode {
    if role == "killed" {
        return unisono::run(killed);
    }
    let mut comm = match unisono::init() {
        Ok(comm) => comm,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(3);
        }
    };
    match role {
        "conformance" => common::conformance(&mut comm, Memory::Slices),
        "registered" => [Memory::Registered, Memory::Parts]
            .into_iter()
            .for_each(|memory| common::conformance(&mut comm, memory)),
        "bits" => common::bits::agree(&mut comm, Memory::Mixed),
        "in flight" => common::in_flight::conformance(&mut comm),
        "refused" => common::errors::refused(&mut comm),
        "groups" => common::groups::conformance(&mut comm),
        "groups conform" => common::groups::inside(&mut comm),
        "point to point" => common::point_to_point::conformance(&mut comm),
        "stress" => common::stress::calls(&mut comm, 200),
        "compressed" => compressed(&mut comm),
        "world" => println!("{} of {} over {}", comm.rank(), comm.ranks(), comm.transport()),
        _ => panic!("no such role: {role}"),
    }
    ExitCode::SUCCESS
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        trials.push(Trial::test(name, move || {
            test();
            Ok(())
        }));
    };
    for (role, sizes) in [
        ("conformance", 1..=4),
        ("registered", 2..=3),
        ("bits", 2..=3),
        ("in flight", 2..=3),
        ("point to point", 2..=4),
        ("stress", 3..=3),
        ("refused", 1..=3),
        ("groups", 1..=4),
        ("groups conform", 4..=4),
    ] {
        for ranks in sizes {
            let test = move || drop(launch(ranks, role, &[]).expect_success());
            trial(format!("{role} at {ranks} ranks"), Box::new(test));
        }
        // The same, as if they were on two machines.
        if role != "refused" {
            let settings = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,1")];
            let test = move || drop(launch(3, role, &settings).expect_success());
            trial(format!("{role} at 3 ranks that connect"), Box::new(test));
        }
    }
    let eight = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1,1,1,1,1,1")];
    let test = move || drop(launch(8, "compressed", &eight).expect_success());
    trial("leaders of 8 nodes that connect sum compressed arrays".to_owned(), Box::new(test));
    for (name, test) in [
        ("ranks of a session find each other, again and again", again as fn()),
        ("ranks that name a folder find each other there", in_folder),
        ("settings that differ are refused with both", settings),
        ("worlds of different sizes are refused with both", sizes),
        ("numbers that are none are refused", numbers),
        ("ranks of several machines need a place to meet", no_place),
        ("ranks in containers of their own connect", containers),
        ("ranks of several machines meet where rank 0 is", meet),
        ("an interface that is not there is refused on all ranks", no_interface),
        ("a rank that is killed ends the job, and leaves nothing", killed_ends_all),
    ] {
        trial(name.to_owned(), Box::new(test));
    }
    trials
}

/// From eight leaders on, so many elements are merged by recursive doubling; half of them are sent as all.
fn compressed(comm: &mut Communicator) {
    let levels = Levels::of(comm).unwrap();
    let count = 1000;
    for format in ["topk:0.12", "topk:0.5", "threshold:500", "int8:stochastic", "int4:stochastic"] {
        let compressor = Compressor::new(&levels, format.parse().unwrap(), &[&[count]]);
        for step in 0..3 {
            let mut values: Vec<f32> =
                (0..count).map(|at| ((at * 37 + comm.rank() * 101 + step) % 509) as f32 + 1.0).collect();
            compressor.all_reduce(comm, &mut values).unwrap();
            assert!(values.iter().any(|&value| value > 0.0), "{format}: something arrived");
            let mut of_first = values.clone();
            comm.broadcast(&mut of_first, 0).unwrap();
            let same = values.iter().zip(&of_first).all(|(own, first)| own.to_bits() == first.to_bits());
            assert!(same, "{format}: all ranks hold the same bits");
        }
    }
}

fn program() -> String {
    std::env::current_exe().expect("a program knows its path").to_str().expect("a path in UTF-8").to_owned()
}

fn launch(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let mut command = launch::processes(ranks, &program());
    command.env(ROLE, role).env("UNISONO_WARNINGS", "off").envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// A process for each of these environments, all at once.
fn each(role: &str, all: &[&[(&str, &str)]]) -> Vec<Ended> {
    let folder = tempfile::tempdir().unwrap();
    let start = |variables: &[(&str, &str)]| {
        let mut command = Command::new(program());
        command.env(ROLE, role).env("UNISONO_BOOTSTRAP_DIR", folder.path());
        command.envs(variables.iter().copied());
        launch::run(command, DEADLINE)
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = all.iter().map(|variables| scope.spawn(|| start(variables))).collect();
        started.into_iter().map(|ended| ended.join().unwrap()).collect()
    })
}

fn expect_world(ended: Ended) {
    let Ended { stdout, stderr, .. } = ended.expect_success();
    for rank in 0..3 {
        assert!(stdout.contains(&format!("{rank} of 3 over shm\n")), "{stdout}{stderr}");
    }
    assert_eq!(stderr, "");
}

fn again() {
    for _ in 0..3 {
        expect_world(launch(3, "world", &[]));
    }
}

fn in_folder() {
    let folder = tempfile::tempdir().unwrap();
    let meeting = folder.path().join("new/one");
    for _ in 0..2 {
        expect_world(launch(3, "world", &[("UNISONO_BOOTSTRAP_DIR", meeting.to_str().unwrap())]));
        assert_eq!(fs::read_dir(&meeting).unwrap().count(), 0, "nothing stays there");
    }
}

/// All ranks say the same, and fail.
fn expect_refusals(all: &[Ended], said: &[&str]) {
    for Ended { status, stderr, stdout } in all {
        assert_eq!(status.code(), Some(3), "{stdout}{stderr}");
        assert!(said.iter().any(|said| stderr.contains(said)), "{stderr}");
    }
}

fn settings() {
    let of = |rank, size| [("RANK", rank), ("WORLD_SIZE", "2"), ("UNISONO_SEGMENT_BYTES", size)];
    let all = each("world", &[&of("0", "64"), &of("1", "128")]);
    expect_refusals(&all, &["UNISONO_SEGMENT_BYTES is 64 on rank 0 ("]);
    assert!(all.iter().all(|ended| ended.stderr.contains("and 128 on rank 1 (")));
    // A rank whose settings make no sense does not let the others wait.
    let all = each("world", &[&of("0", "64"), &of("1", "65")]);
    expect_refusals(&all, &["on rank 1 ("]);
}

fn sizes() {
    let all = each(
        "world",
        &[
            &[("RANK", "0"), ("WORLD_SIZE", "2")],
            &[("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")],
        ],
    );
    let said = [
        "rank 0 is in a world of 2 ranks, but rank 1 in one of 3",
        "rank 1 is in a world of 3 ranks, but rank 0 in one of 2",
    ];
    // Whoever sees it first ends, and the other may see that.
    expect_refusals(&all, &[said[0], said[1], "has ended before the world began"]);
    assert!(all.iter().any(|ended| said.iter().any(|said| ended.stderr.contains(said))));
}

fn numbers() {
    for (rank, ranks) in [("2", "2"), ("first", "2"), ("0", "0")] {
        let all = each("world", &[&[("RANK", rank), ("WORLD_SIZE", ranks)]]);
        expect_refusals(&all, &["RANK and WORLD_SIZE say nothing of a world"]);
    }
}

fn no_place() {
    let mut command = Command::new(program());
    command.env(ROLE, "world").envs([("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")]);
    command.env_remove("MASTER_ADDR");
    let ended = launch::run(command, DEADLINE);
    expect_refusals(&[ended], &["rank 0 is one of 4, of which 2 are on this machine: for ranks of several"]);
}

fn containers() {
    let mut command = match launch::containers(3, &program(), 29_871) {
        Ok(command) => command,
        Err(why) => return eprintln!("skipped, since there can be no containers here: {why}"),
    };
    command.env(ROLE, "world");
    let stdout = launch::run(command, DEADLINE).expect_success().stdout;
    assert!((0..3).all(|rank| stdout.contains(&format!("{rank} of 3 over tcp\n"))), "{stdout}");
}

fn meet() {
    // The next one is what a launcher names.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port() - 1;
    let start = |rank: usize| {
        let mut command = Command::new(program());
        command.envs([(ROLE, "world"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "1")]);
        command.env("RANK", rank.to_string()).env("UNISONO_WARNINGS", "off");
        command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", port.to_string());
        command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")]);
        launch::run(command, DEADLINE).expect_success()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || start(rank))).collect();
        for (rank, ended) in ranks.into_iter().enumerate() {
            assert_eq!(ended.join().unwrap().stdout, format!("{rank} of 3 over tcp\n"));
        }
    });
}

fn no_interface() {
    let settings = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1"), ("UNISONO_INTERFACE", "nothing9")];
    let ended = launch(2, "world", &settings);
    assert!(!ended.status.success());
    let said =
        "rank 0 cannot listen for others: UNISONO_INTERFACE is \"nothing9\", and this machine has no such";
    assert_eq!(ended.stderr.matches(said).count(), 2, "{}", ended.stderr);
}

fn kill_this_process() {
    let process = std::process::id().to_string();
    Command::new("kill").args(["-KILL", &process]).status().expect("kill starts");
    std::thread::sleep(DEADLINE);
}

/// Works without end, until rank 1 is killed.
fn killed(comm: &mut Communicator) -> unisono::Result<()> {
    println!("process {}", std::process::id());
    let mut array = comm.alloc::<f32>(1 << 20)?;
    for call in 0.. {
        comm.all_reduce(&mut array, ReduceOp::Max)?;
        if comm.rank() == 1 && call == 10 {
            kill_this_process();
        }
    }
    Ok(())
}

fn killed_ends_all() {
    let before = left::shared_files();
    let began = Instant::now();
    let ended = launch(3, "killed", &[]);
    let told = format!("{}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
    assert!(!ended.status.success() && began.elapsed() < SOON, "{told}");
    assert!(ended.stderr.contains("unisono: rank 1 (host ") && ended.stderr.contains("has died"), "{told}");
    assert_eq!(
        ended.stderr.matches("aborted because rank 1 failed: its process was killed").count(),
        2,
        "{told}"
    );
    left::nothing(ended.stdout.lines().filter_map(|line| line.strip_prefix("process ")), 3, &before);
}
