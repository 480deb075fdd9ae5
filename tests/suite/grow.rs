//! Worlds that grow by processes.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use unisono::{Algorithm, Choice, Communicator, Error, OnFailure, ReduceOp, Result, Unisono};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const DEADLINE: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_secs(60);
/// The path of the socket, for ranks that are processes.
const PATH: &str = "UNISONO_TEST_GROWS_AT";

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        joining_ranks_follow_and_get_the_settings_of_the_world,
        joining_rank_gets_the_minimum_number_of_ranks,
        killed_process_is_replaced,
        world_continues_if_no_process_joins,
        different_settings_are_refused_and_the_world_continues,
        process_that_ends_while_joining_is_named,
        process_that_hangs_while_joining_is_named,
        mismatched_growth_is_an_error_on_every_rank,
    ];
    let machines = Test::new("a process joins machines over TCP", process_joins_several_machines);
    tests.push(machines.unless(launch::no_containers));
    tests
}

fn sum(comm: &mut Communicator) -> Result<u64> {
    let mut sum = [1];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// Runs a world of two threads and, beside it, a function with the path at which the world grows.
fn two_and<R: Send, S: Send>(
    rank: impl Fn(Communicator, &Path) -> Result<R> + Sync,
    beside: impl FnOnce(&Path) -> S + Send,
) -> (Vec<R>, S) {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("world");
    std::thread::scope(|scope| {
        let beside = scope.spawn(move || beside(path));
        let ended =
            Unisono::builder().ignore_environment().timeout(TIMEOUT).on_threads(2, |comm| rank(comm, path));
        let ended = ended.unwrap().into_iter().map(Result::unwrap).collect();
        (ended, beside.join().unwrap())
    })
}

fn joining_ranks_follow_and_get_the_settings_of_the_world() {
    let check = |comm: &mut Communicator| -> Result<usize> {
        assert_eq!((comm.ranks(), comm.choice()), (4, &Choice::from(Algorithm::Ring)));
        assert_eq!(sum(comm)?, 4);
        Ok(comm.rank())
    };
    let rank = |mut comm: Communicator, path: &Path| {
        comm.set_choice(Algorithm::Ring)?;
        let mut grown = comm.grow(2, path)?;
        assert_eq!(check(&mut grown)?, comm.rank());
        assert_eq!(sum(&mut comm)?, 2);
        // A grown world shrinks.
        drop(comm);
        let left = grown.rank();
        if left == 1 {
            return Ok(left);
        }
        while sum(&mut grown).is_ok() {}
        let mut shrunk = grown.shrink()?;
        assert_eq!(shrunk.former_ranks(), [0, 2, 3]);
        assert_eq!(sum(&mut shrunk)?, 3);
        Ok(left)
    };
    let joins = |path: &Path| -> Result<usize> {
        let mut comm = Unisono::builder().ignore_environment().timeout(TIMEOUT).join(path)?;
        let rank = check(&mut comm)?;
        while sum(&mut comm).is_ok() {}
        assert_eq!(sum(&mut comm.shrink()?)?, 3);
        Ok(rank)
    };
    let (ranks, mut joined) = two_and(rank, |path| {
        std::thread::scope(|scope| {
            let both = [0, 1].map(|_| scope.spawn(|| joins(path)));
            both.map(|one| one.join().unwrap().unwrap())
        })
    });
    joined.sort_unstable();
    assert_eq!((ranks, joined), (vec![0, 1], [2, 3]));
}

fn joining_rank_gets_the_minimum_number_of_ranks() {
    let shrinks = |mut comm: Communicator| {
        while sum(&mut comm).is_ok() {}
        comm.shrink().unwrap_err().to_string()
    };
    let rank = |mut comm: Communicator, path: &Path| {
        comm.set_minimum_ranks(3);
        let grown = comm.grow(1, path)?;
        // Rank 1 leaves the new world.
        Ok((comm.rank() == 0).then(|| shrinks(grown)))
    };
    let joins =
        |path: &Path| shrinks(Unisono::builder().ignore_environment().timeout(TIMEOUT).join(path).unwrap());
    let (ranks, joined) = two_and(rank, joins);
    for error in [ranks[0].as_ref().unwrap(), &joined] {
        assert!(error.contains("2 ranks are left, fewer than the minimum, 3"), "{error}");
    }
}

pub(crate) fn play(role: &str) -> ExitCode {
    let path = std::env::var(PATH).unwrap();
    let ended = match role {
        "joins" => play_joins(&path),
        "machines" => play_machines(&path),
        _ => play_is_killed(&path),
    };
    if let Err(error) = ended {
        println!("failed: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn play_joins(path: &str) -> Result<()> {
    let mut comm = Unisono::builder().timeout(TIMEOUT).join(path)?;
    println!("rank {} joined, and {} are there", comm.rank(), sum(&mut comm)?);
    Ok(())
}

/// Rank 1 is killed, and the first of the others starts another process.
fn play_is_killed(path: &str) -> Result<()> {
    let mut comm = Unisono::builder().timeout(TIMEOUT).processes()?;
    if comm.rank() == 1 {
        launch::kill_this_process();
    }
    while sum(&mut comm).is_ok() {}
    let mut comm = comm.shrink()?;
    let joins = (comm.rank() == 0).then(|| {
        let mut command = Command::new(launch::this_program());
        suite::play(&mut command, "grow", "joins").spawn().unwrap()
    });
    let mut comm = comm.grow(1, path)?;
    println!("{} are there", sum(&mut comm)?);
    if let Some(mut joins) = joins {
        assert!(joins.wait().unwrap().success());
    }
    Ok(())
}

fn killed_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch::processes(3, &launch::this_program());
    suite::play(&mut command, "grow", "is killed").env("UNISONO_WARNINGS", "off");
    command.env(PATH, folder.path().join("world"));
    let ended @ Ended { stdout, .. } = &launch::run(command, DEADLINE);
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["3 are there", "3 are there", "rank 2 joined, and 3 are there"], "{ended}");
}

/// Each rank is on a separate machine. Rank 1 starts a process, which joins as rank 2.
fn play_machines(address: &str) -> Result<()> {
    let mut comm = Unisono::builder().timeout(TIMEOUT).processes()?;
    let joins = (comm.rank() == 1).then(|| {
        let mut command = Command::new(launch::this_program());
        suite::play(&mut command, "grow", "joins").spawn().unwrap()
    });
    let mut grown = comm.grow(1, address)?;
    assert_eq!((sum(&mut grown)?, sum(&mut comm)?), (3, 2));
    println!("3 are there");
    if let Some(mut joins) = joins {
        assert!(joins.wait().unwrap().success());
    }
    Ok(())
}

fn process_joins_several_machines() {
    let mut command = launch::containers(2, &launch::this_program());
    suite::play(&mut command, "grow", "machines").env("UNISONO_WARNINGS", "off");
    command.env(PATH, format!("127.0.0.1:{}", launch::free_port()));
    let ended @ Ended { stdout, .. } = &launch::run(command, DEADLINE);
    let mut lines: Vec<_> = stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["3 are there", "3 are there", "rank 2 joined, and 3 are there"], "{ended}");
}

fn world_continues_if_no_process_joins() {
    let rank = |mut comm: Communicator, path: &Path| {
        comm.set_timeout(Duration::from_millis(300));
        let error = comm.grow(1, path).unwrap_err();
        assert!(matches!(error, Error::OnRank0 { .. }) && !error.is_fatal(), "{error}");
        assert!(error.to_string().contains("0 of 1 processes have joined at "), "{error}");
        assert_eq!(sum(&mut comm)?, 2);
        Ok(path.exists())
    };
    assert_eq!(two_and(rank, |_| ()).0, [false, false]);
    let nowhere = Unisono::builder().timeout(Duration::from_millis(100)).join("/nowhere/at/all").unwrap_err();
    assert!(nowhere.to_string().starts_with("cannot join at /nowhere/at/all: "), "{nowhere}");
}

fn different_settings_are_refused_and_the_world_continues() {
    let rank = |mut comm: Communicator, path: &Path| {
        let error = comm.grow(1, path).unwrap_err();
        assert_eq!(sum(&mut comm)?, 2);
        Ok(error)
    };
    let joins = |path: &Path| {
        let builder = Unisono::builder().ignore_environment().timeout(TIMEOUT);
        builder.on_failure(OnFailure::EndJob).join(path).unwrap_err()
    };
    let (errors, joined) = two_and(rank, joins);
    for error in errors.iter().chain([&joined]) {
        assert!(matches!(error, Error::Setting(_)), "{error}");
        assert!(error.to_string().contains("OnFailure is ReturnError on ranks 0, 1 ("), "{error}");
    }
}

/// Runs a process that joins, and fails in its first wait by this callback. The ranks have these timeouts.
fn fails_while_joining(timeouts: [Duration; 2], callback: fn() -> std::result::Result<(), String>) {
    let rank = |mut comm: Communicator, path: &Path| {
        comm.set_timeout(timeouts[comm.rank()]);
        let error = comm.grow(1, path).unwrap_err();
        assert!(matches!(error, Error::Launch(_)) && !error.is_fatal(), "{error}");
        assert_eq!(sum(&mut comm)?, 2);
        Ok(error.to_string())
    };
    let joins = |path: &Path| {
        // Once rank 0 listens, the process waits only for its bytes.
        while UnixStream::connect(path).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let joins = || Unisono::builder().ignore_environment().timeout(TIMEOUT).join(path);
        unisono::while_waiting(callback, joins).unwrap_err();
    };
    for text in two_and(rank, joins).0 {
        let starts = [
            "a process that joins has failed: rank 2 ",
            "rank 2, which joins, has failed: its process has ended",
        ];
        assert!(starts.iter().any(|start| text.starts_with(start)), "{text}");
    }
}

fn process_that_ends_while_joining_is_named() {
    fails_while_joining([TIMEOUT; 2], || Err("interrupted".to_owned()));
}

fn process_that_hangs_while_joining_is_named() {
    // Rank 1 waits for longer than its timeout, while rank 0 waits for the process.
    fails_while_joining([1500, 500].map(Duration::from_millis), || {
        std::thread::sleep(Duration::from_secs(4));
        Err("interrupted".to_owned())
    });
}

fn mismatched_growth_is_an_error_on_every_rank() {
    let rank = |mut comm: Communicator, path: &Path| {
        let more = 1 + comm.rank();
        Ok(comm.grow(more, path).unwrap_err())
    };
    for error in two_and(rank, |_| ()).0 {
        assert!(
            matches!(error, Error::Mismatch { .. }) && error.to_string().contains("grow by 2 at "),
            "{error}"
        );
    }
}
