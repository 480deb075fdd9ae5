//! Worlds under mpirun. This program launches itself: without a role it is the test runner, with one it is
//! a rank.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono::{Algorithm, Choice, Communicator, ReduceOp};

mod common;

use common::launch::{self, Ended};

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
const DEADLINE: Duration = Duration::from_secs(240);

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
    let mut comm = unisono::init().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(3)
    });
    match role {
        "conformance" => common::conformance(&mut comm),
        "bits" => common::bits::agree(&mut comm),
        "long" => long_messages(&mut comm),
        "nodes" => assert_eq!(comm.topology().nodes(), 2),
        "count" => mismatched(&mut comm, |comm, buffer| {
            let short = if comm.rank() == 1 { &mut buffer[1..] } else { buffer };
            comm.all_reduce(short, ReduceOp::Sum).map(drop)
        }),
        "dtype" => mismatched(&mut comm, |comm, buffer| match comm.rank() {
            2 => comm.all_reduce(bytemuck::cast_slice_mut::<f32, u32>(buffer), ReduceOp::Sum).map(drop),
            _ => comm.all_reduce(buffer, ReduceOp::Sum).map(drop),
        }),
        "op" => mismatched(&mut comm, |comm, buffer| {
            let op = if comm.rank() == 0 { ReduceOp::Mean } else { ReduceOp::Sum };
            comm.all_reduce(buffer, op).map(drop)
        }),
        "algorithm" => mismatched(&mut comm, |comm, buffer| {
            let algorithm = if comm.rank() == 1 { Algorithm::Tree } else { Algorithm::Butterfly };
            comm.set_choice(Choice::Algorithm(algorithm))?;
            comm.all_reduce(buffer, ReduceOp::Sum).map(drop)
        }),
        "order" => mismatched(&mut comm, |comm, buffer| {
            if comm.rank() == 0 {
                comm.broadcast(buffer, 0)?;
            }
            comm.all_reduce(buffer, ReduceOp::Sum).map(drop)
        }),
        "panic" => {
            assert_ne!(comm.rank(), 1, "on purpose");
            let _ = comm.barrier();
        }
        "late" => {
            comm.set_timeout(Duration::from_secs(1));
            if comm.rank() == 0 {
                std::thread::sleep(Duration::from_secs(5));
            }
            comm.barrier().unwrap();
        }
        _ => panic!("no such role: {role}"),
    }
    ExitCode::SUCCESS
}

/// Messages of many segments, whole and not, sent and reduced: the limit of a segment is lowered to a cache
/// line.
fn long_messages(comm: &mut Communicator) {
    for algorithm in Algorithm::ALL {
        comm.set_choice(Choice::Algorithm(algorithm)).unwrap();
        let mut buffer: Vec<f64> = (0..20_011).map(|index| f64::from(index % 1000)).collect();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        let ranks = comm.ranks() as f64;
        assert!(buffer.iter().enumerate().all(|(index, &sum)| sum == (index % 1000) as f64 * ranks));
    }
}

/// Calls something that the ranks disagree on. Nobody may come out of it with a result.
fn mismatched(comm: &mut Communicator, call: impl Fn(&mut Communicator, &mut [f32]) -> unisono::Result<()>) {
    comm.set_timeout(Duration::from_secs(30));
    comm.set_choice(Choice::Algorithm(Algorithm::Ring)).unwrap();
    let mut buffer = vec![1.0; 100_000];
    let called = call(comm, &mut buffer);
    let then = comm.barrier();
    println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
}

fn launch(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let program = std::env::current_exe().expect("a program knows its path");
    let mut command = launch::mpirun(ranks, program.to_str().expect("a path in UTF-8"));
    command.env(ROLE, role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        trials.push(Trial::test(name, move || {
            test();
            Ok(())
        }));
    };
    for ranks in 1..=5 {
        for role in ["conformance", "bits"] {
            let test = move || drop(launch(ranks, role, &[]).expect_success());
            trial(format!("{role} at {ranks} ranks"), Box::new(test));
        }
    }
    trial(
        "bits at 4 ranks on two declared nodes".into(),
        Box::new(|| drop(launch(4, "bits", &[("UNISONO_NODES", "3,1")]).expect_success())),
    );
    trial(
        "messages of many segments at 3 ranks".into(),
        Box::new(|| drop(launch(3, "long", &[("UNISONO_SEGMENT_BYTES", "64")]).expect_success())),
    );
    trial(
        "declared nodes".into(),
        Box::new(|| drop(launch(4, "nodes", &[("UNISONO_NODES", "2,2")]).expect_success())),
    );
    trial("nodes that do not add up".into(), Box::new(wrong_nodes));
    for (role, one, other) in [
        ("count", "of 100000 f32", "of 99999 f32"),
        ("dtype", "of 100000 f32", "of 100000 u32"),
        ("op", "f32, mean", "f32, sum"),
        ("algorithm", "by tree", "by butterfly"),
        ("order", "all-reduce #0", "broadcast #0"),
    ] {
        trial(format!("another {role}"), Box::new(move || disagreement(role, one, other)));
    }
    trial(
        "a panic ends the job".into(),
        Box::new(|| drop(failure("panic", "rank 1 ends the job: it panicked"))),
    );
    trial("a rank that does not come is named".into(), Box::new(|| drop(failure("late", "for rank 0"))));
    trials
}

fn wrong_nodes() {
    let ended = launch(2, "nodes", &[("UNISONO_NODES", "2,2")]);
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("which are 4, in a world of 2"), "{}", ended.stderr);
}

fn failure(role: &str, said: &str) -> Ended {
    let ended = launch(3, role, &[]);
    assert!(!ended.status.success(), "{}", ended.stdout);
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    ended
}

/// Ranks that disagree get no result, and the one that sees it names both sides.
fn disagreement(role: &str, one: &str, other: &str) {
    let ended = failure(role, "ends the job");
    let named = ended.stderr.lines().any(|line| line.contains(one) && line.contains(other));
    assert!(named, "{one:?} and {other:?} in {}", ended.stderr);
    assert!(!ended.stdout.contains("result: true"), "{}", ended.stdout);
}
