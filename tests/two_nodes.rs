//! Worlds over several nodes, as tools/two-nodes makes them of one machine: ranks that MPI sees on different hosts, with nothing but
//! a network between them. Where the kernel does not allow it, these tests are ignored, and say why.
//!
//! This program launches itself: without a role it is the test runner, with one it is a rank.

use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use unisono::{Algorithm, Call, Communicator, DType, ReduceOp};

mod common;

use common::memory::Memory;
use unisono_testing::launch::{self, Ended};
use unisono_testing::soak::Soak;

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/two-nodes");
const DEADLINE: Duration = Duration::from_secs(180);
/// The script's, where the kernel does not allow it, or something is not installed.
const UNABLE: [i32; 2] = [77, 78];

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
        "conformance" => common::conformance(&mut comm, Memory::Slices),
        "registered" => common::conformance(&mut comm, Memory::Mixed),
        "bits" => common::bits::agree(&mut comm, Memory::Slices),
        "blocks" => {
            common::bits::agree_in_blocks(&mut comm, Memory::Slices);
            common::bits::agree_in_blocks(&mut comm, Memory::Mixed);
        }
        "stress" => common::stress::calls(&mut comm, 300),
        "in flight" => common::in_flight::conformance(&mut comm),
        "place" => println!("{}", place(&comm)),
        "auto" => println!("{}", chosen(&mut comm)),
        "disagree" => {
            // Large enough for lanes.
            let count = if comm.rank() == 1 { 999_999 } else { 1_000_000 };
            comm.set_timeout(Duration::from_secs(30));
            let called = comm.all_reduce(&mut vec![1_f32; count], ReduceOp::Sum);
            let then = comm.barrier();
            println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
        }
        _ => panic!("no such role: {role}"),
    }
    ExitCode::SUCCESS
}

/// Where a rank sees itself.
fn place(comm: &Communicator) -> String {
    let (topology, rank) = (comm.topology(), comm.rank());
    let node = topology.node_of(rank);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let members = topology.node(node).ranks();
    format!(
        "rank {rank} on node {node} of {}, with {members} ranks, host {}, {}",
        topology.nodes(),
        host.trim(),
        comm.transport()
    )
}

/// What `auto` takes for arrays of some sizes.
fn chosen(comm: &mut Communicator) -> String {
    let by = |size_bytes: usize| {
        comm.selection(&Call::all_reduce(DType::F32, ReduceOp::Sum, size_bytes / size_of::<f32>()))
            .method
            .name()
    };
    let chosen: Vec<_> = [64 << 10, 1 << 20, 16 << 20].map(by).into();
    let levels = [Algorithm::HierarchicalCopy, Algorithm::Rail].map(Algorithm::name);
    format!("levels: {}, by {}", chosen.iter().all(|name| levels.contains(name)), chosen.join(", "))
}

fn launch(ranks: &str, role: &str, settings: &[(&str, &str)]) -> Ended {
    let program = std::env::current_exe().expect("a program knows its path");
    let mut command = script(ranks);
    command.arg(program).env(ROLE, role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// The script, which takes a program next.
fn script(ranks: &str) -> Command {
    let mut command = Command::new(SCRIPT);
    if let Ok(launcher) = std::env::var("UNISONO_TEST_MPIRUN") {
        command.args(["--mpirun", &launcher]);
    }
    command.args(["--ranks", ranks, "--"]);
    command
}

/// Lets each process see only what a launcher without MPI would tell it.
const WITHOUT_MPI: &str = r#"
export RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}
export LOCAL_WORLD_SIZE=${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS} MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
unset OMPI_COMM_WORLD_SIZE PMI_SIZE
exec "$1"
"#;

/// The same for processes that use no MPI: they meet where rank 0 is.
fn launch_without_mpi(ranks: &str, role: &str) -> Ended {
    let program = std::env::current_exe().expect("a program knows its path");
    let (folder, mut command) = (tempfile::tempdir().unwrap(), script(ranks));
    let wrapper = folder.path().join("without-mpi");
    std::fs::write(&wrapper, WITHOUT_MPI).unwrap();
    command.arg("sh").arg(wrapper).arg(program);
    command.env(ROLE, role).env("UNISONO_WARNINGS", "off");
    // Network namespaces alone do not keep processes from sharing memory.
    command.envs([("UNISONO_NODES", ranks), ("UNISONO_NETWORK", "tcp")]);
    launch::run(command, DEADLINE)
}

/// Why this machine has no nodes, if it has none.
fn obstacle() -> Option<String> {
    let mut command = Command::new(SCRIPT);
    command.args(["--rate", "1gbit", "--check"]);
    let ended = launch::run(command, DEADLINE);
    match ended.status.code() {
        Some(0) => None,
        Some(code) if UNABLE.contains(&code) => Some(ended.stderr.trim().replace('\n', "; ")),
        _ => panic!("{SCRIPT} --check: {}\n{}", ended.status, ended.stderr),
    }
}

fn trials() -> Vec<Trial> {
    let obstacle = obstacle();
    if let Some(obstacle) = &obstacle {
        eprintln!("ignored, since there can be no nodes here: {obstacle}");
    }
    let mut trials = Vec::new();
    let mut trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        let trial = Trial::test(name, move || {
            test();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(obstacle.is_some()));
    };
    // Four nodes exchange several chunks in a step.
    let worlds: [(&str, &[&str]); 4] = [
        ("2,2", &["bits", "blocks", "stress", "in flight"]),
        ("3,1", &["conformance", "bits", "blocks", "stress"]),
        ("1,1,1", &["bits", "blocks", "stress"]),
        ("2,1,1,1", &["bits", "blocks"]),
    ];
    // Minutes each, where ranks take turns on a core for a network's every message.
    let long: [(&str, &[&str]); 2] = [("2,2", &["conformance", "registered"]), ("1,1,1", &["conformance"])];
    let is_long = Soak::from_environment().minutes.is_some();
    for (ranks, roles) in worlds.into_iter().chain(long.into_iter().filter(|_| is_long)) {
        for role in roles {
            // Worlds of threads, which the bits are held against, are to have the same nodes.
            let nodes = [("UNISONO_NODES", ranks)];
            let settings = if matches!(*role, "bits" | "blocks") { &nodes[..] } else { &[] };
            let settings: Vec<_> = settings.to_vec();
            let test = move || drop(launch(ranks, role, &settings).expect_success());
            trial(format!("{role} over nodes of {ranks}"), Box::new(test));
        }
    }
    trial("every rank knows its node".into(), Box::new(every_rank_knows_its_node));
    for ranks in ["2,2", "3,1"] {
        let test = move || {
            let stdout = launch(ranks, "auto", &[]).expect_success().stdout;
            assert_eq!(stdout.matches("levels: true").count(), 4, "{stdout}");
        };
        trial(format!("auto takes the levels of {ranks}"), Box::new(test));
    }
    for network in ["tcp", "mpi"] {
        let test = move || disagreement(&[("UNISONO_NETWORK", network)]);
        trial(format!("ranks that disagree over nodes by {network}"), Box::new(test));
    }
    for role in ["bits over MPI", "blocks over MPI", "stress over MPI", "in flight over MPI"] {
        let test = move || {
            let settings = [("UNISONO_NETWORK", "mpi"), ("UNISONO_NODES", "2,2")];
            drop(launch("2,2", role.trim_end_matches(" over MPI"), &settings).expect_success());
        };
        trial(format!("{role} over nodes of 2,2"), Box::new(test));
    }
    for (ranks, role) in [("2,1", "stress"), ("2,1", "bits"), ("1,1", "in flight"), ("1,1,1", "conformance")]
    {
        let test = move || drop(launch_without_mpi(ranks, role).expect_success());
        trial(format!("{role} without MPI over nodes of {ranks}"), Box::new(test));
    }
    trial(
        "ranks without MPI connect".into(),
        Box::new(|| {
            let stdout = launch_without_mpi("2,1", "place").expect_success().stdout;
            assert_eq!(stdout.matches("shm+tcp").count(), 3, "{stdout}");
        }),
    );
    trials
}

fn every_rank_knows_its_node() {
    let over = |network| [("UNISONO_NETWORK", network)];
    for (ranks, network, transport) in [
        ("2,2", "auto", "shm+tcp"),
        ("3,1", "mpi", "shm+mpi"),
        ("1,1,1", "auto", "tcp"),
        ("1,1", "mpi", "mpi"),
    ] {
        let stdout = launch(ranks, "place", &over(network)).expect_success().stdout;
        let sizes: Vec<usize> = ranks.split(',').map(|size| size.parse().unwrap()).collect();
        let nodes = sizes.iter().enumerate().flat_map(|(node, &size)| vec![(node, size); size]);
        for (rank, (node, size)) in nodes.enumerate() {
            let (nodes, host) = (sizes.len(), node + 1);
            let expected = format!(
                "rank {rank} on node {node} of {nodes}, with {size} ranks, host node{host}, {transport}\n"
            );
            assert!(stdout.contains(&expected), "{expected} in {stdout}");
        }
    }
}

/// Nobody gets a result, and who sees it names both sides, whoever it is that differs.
fn disagreement(settings: &[(&str, &str)]) {
    let ended = launch("2,2", "disagree", settings);
    assert!(!ended.status.success(), "{}", ended.stdout);
    assert!(!ended.stdout.contains("result: true"), "{}", ended.stdout);
    let named = |line: &str| line.contains("of 1000000 f32") && line.contains("of 999999 f32");
    assert!(ended.stderr.lines().any(named), "{}", ended.stderr);
}
