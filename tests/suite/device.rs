//! Arrays on GPUs, over stand-ins for the CUDA driver and NCCL (`crates/stand-ins/`), which are as asynchronous as a GPU, in worlds
//! of processes under mpirun and of threads.

use std::process::{Command, ExitCode};
use std::time::Duration;

use unisono_testing::launch::{self, Ended};
use unisono_testing::stand_ins;
use unisono_testing::suite::{self, Test};

use crate::common::roles;

mod contexts;
mod differ;
mod operations;
mod ranks;

const DEADLINE: Duration = Duration::from_secs(120);

type Settings = &'static [(&'static str, &'static str)];

pub(crate) fn play(role: &str) -> ExitCode {
    match role {
        "threads" => ranks::threads(),
        "threads that differ" => differ::all(),
        "threads with contexts" => contexts::all(),
        "threads that are late" => contexts::late(),
        _ => {
            return roles::play(role, |role, comm| {
                ranks::play(role, comm);
                true
            });
        }
    }
    ExitCode::SUCCESS
}

pub(crate) fn tests() -> Vec<Test> {
    let gpus: Settings = &[("STAND_IN_DEVICES", "4")];
    let one_gpu: Settings = &[("STAND_IN_DEVICES", "1")];
    let may_share: Settings = &[("STAND_IN_DEVICES", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    let even: Settings = &[("STAND_IN_DEVICES", "4"), ("UNISONO_NODES", "2,2")];
    let uneven: Settings = &[("STAND_IN_DEVICES", "4"), ("UNISONO_NODES", "3,1")];
    let nodes_share: Settings =
        &[("STAND_IN_DEVICES", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("UNISONO_NODES", "2,2")];
    let of_one: Settings = &[("STAND_IN_DEVICES", "4"), ("UNISONO_NODES", "1,1,1")];
    let old_nccl: Settings = &[
        ("STAND_IN_DEVICES", "1"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        ("STAND_IN_NCCL_VERSION", "2.29.7"),
    ];
    let delays: Settings = &[("STAND_IN_DEVICES", "1"), ("STAND_IN_DELAY_US", "5000")];
    let refused: Settings = &[("STAND_IN_DEVICES", "4"), ("STAND_IN_NCCL_REFUSED_RANK", "1")];
    let worlds: [(&str, usize, Settings, &[&str]); 12] = [
        ("a GPU each", 1, gpus, &["reduce"]),
        (
            "a GPU each",
            2,
            gpus,
            &[
                "by nccl",
                "reduce",
                "operations",
                "in flight",
                "in flight, untracked",
                "segments",
                "another GPU",
            ],
        ),
        ("a GPU each", 4, gpus, &["by nccl", "operations"]),
        (
            "one GPU",
            3,
            one_gpu,
            &["through the host", "reduce", "operations", "bits", "in flight", "in flight, untracked"],
        ),
        ("one GPU, which NCCL shares", 2, may_share, &["by nccl", "reduce"]),
        ("one GPU, which an old NCCL does not share", 2, old_nccl, &["through the host"]),
        ("a GPU each, which NCCL refuses for rank 1", 2, refused, &["refused by nccl"]),
        ("two and two", 4, even, &["in nodes", "reduce", "in flight", "segments"]),
        ("three and one", 4, uneven, &["in nodes", "reduce", "operations", "segments"]),
        ("two and two on one GPU", 4, nodes_share, &["in nodes", "segments"]),
        ("streams with long delays", 2, delays, &["many segments"]),
        ("nodes of one", 3, of_one, &["alone", "reduce"]),
    ];
    let world = |(world, count, settings, roles): (&str, usize, Settings, &'static [&str])| {
        let transport = match settings.iter().find(|(name, _)| *name == "UNISONO_NODES") {
            None if count == 1 => "mpi",
            None => "shm",
            Some((_, "1,1,1")) => "mpi",
            Some(_) => "shm+mpi",
        };
        let test = move || {
            roles::expect(&launch(count, &roles::job(roles), settings), count, roles, transport);
        };
        Test::new(format!("{world}, {count} ranks: {}", roles.join("; ")), test)
    };
    worlds.into_iter().map(world).chain(failing(gpus, one_gpu, even)).chain(of_threads(gpus)).collect()
}

/// Returns the tests of ranks that are threads of one process.
fn of_threads(gpus: Settings) -> impl Iterator<Item = Test> {
    let patient: Settings = &[("STAND_IN_DEVICES", "4"), ("STAND_IN_NCCL_DEADLINE_MS", "600000")];
    let roles = [
        ("threads", gpus),
        ("threads that differ", gpus),
        ("threads with contexts", gpus),
        ("threads that are late", patient),
    ];
    roles.into_iter().map(|(role, settings)| {
        Test::new(format!("{role}, with a GPU each"), move || {
            end(Command::new(launch::this_program()), role, settings).expect_success();
        })
    })
}

/// Returns the tests of ranks whose calls differ, or of which one is late.
fn failing(gpus: Settings, one_gpu: Settings, even: Settings) -> impl Iterator<Item = Test> {
    let counts: &[&str] = &["of 1000 f32", "of 999 f32", "has failed"];
    let failing: [(&'static str, usize, Settings, &'static [&'static str]); 7] = [
        ("count", 2, gpus, counts),
        ("count", 3, one_gpu, counts),
        ("count", 4, even, counts),
        ("order", 2, gpus, counts),
        ("order", 4, even, counts),
        ("late", 2, gpus, &["by nccl", "for rank 0"]),
        ("late", 4, even, &["by hierarchical-copy+nccl", "for rank 0"]),
    ];
    failing.into_iter().map(|(role, count, settings, expected)| {
        let test = move || {
            let ended = launch(count, role, settings);
            assert!(!ended.status.success() && !ended.stdout.contains("result: true"), "{ended:?}");
            assert!(
                expected.iter().all(|part| ended.stderr.contains(part)),
                "{expected:?} in {}",
                ended.stderr
            );
        };
        Test::new(format!("{role} at {count} ranks with {settings:?}"), test)
    })
}

fn launch(count: usize, role: &str, settings: Settings) -> Ended {
    end(launch::mpirun(count, &launch::this_program()), role, settings)
}

fn end(mut command: Command, role: &str, settings: Settings) -> Ended {
    suite::play(&mut command, "device", role).env("STAND_IN_DELAY_US", "5").envs(stand_ins::environment());
    command.envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}
