//! Worlds over several nodes, which scripts/two-nodes simulates on one machine: MPI finds the ranks on different hosts, connected
//! only by a network. If the kernel does not permit it, these tests are ignored with the reason.

use std::process::{Command, ExitCode};
use std::sync::LazyLock;
use std::time::Duration;

use unisono::{Algorithm, Call, Communicator, DType, ReduceOp};
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};

use crate::common::roles;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/two-nodes");
const DEADLINE: Duration = Duration::from_secs(240);
/// The script's exit codes if the kernel does not permit it, or a program is not installed.
const UNABLE: [i32; 2] = [77, 78];

pub(crate) fn play(role: &str) -> ExitCode {
    roles::play(role, |role, comm| {
        match role {
            "place" => println!("{}", place(comm)),
            "auto" => println!("{}", chosen(comm)),
            "disagree" => disagree(comm),
            _ => return false,
        }
        true
    })
}

fn disagree(comm: &mut Communicator) {
    // Large enough for a pipelined run.
    let count = if comm.rank() == 1 { 999_999 } else { 1_000_000 };
    comm.set_timeout(Duration::from_secs(30));
    let called = comm.all_reduce(&mut vec![1_f32; count], ReduceOp::Sum);
    let then = comm.barrier();
    println!("rank {} got a result: {}", comm.rank(), called.is_ok() && then.is_ok());
}

/// Describes the node of a rank, and reports oversubscription.
fn place(comm: &Communicator) -> String {
    let (topology, rank) = (comm.topology(), comm.rank());
    let node = topology.node_of(rank);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let members = topology.node(node).ranks();
    format!(
        "rank {rank} on node {node} of {}, with {members} ranks, host {}, {}\noversubscribed: {}",
        topology.nodes(),
        host.trim(),
        comm.transport(),
        comm.is_oversubscribed()
    )
}

/// Describes the choices of `auto` for arrays of several sizes.
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
    let mut command = script(ranks);
    suite::play(command.arg(launch::this_program()), "two_nodes", role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// Returns the command of the script, to which a program is appended.
fn script(ranks: &str) -> Command {
    let mut command = Command::new(SCRIPT);
    if let Ok(launcher) = std::env::var("UNISONO_TEST_MPIRUN") {
        command.args(["--mpirun", &launcher]);
    }
    command.args(["--ranks", ranks, "--"]);
    command
}

/// Sets only the variables of a launcher without MPI.
const WITHOUT_MPI: &str = r#"
export RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} WORLD_SIZE=${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}
export LOCAL_WORLD_SIZE=${OMPI_COMM_WORLD_LOCAL_SIZE:-$MPI_LOCALNRANKS} MASTER_ADDR=10.77.0.1 MASTER_PORT=29500
unset OMPI_COMM_WORLD_SIZE PMI_SIZE
exec "$1"
"#;

/// Launches processes without MPI, which meet at rank 0.
fn launch_without_mpi(ranks: &str, role: &str) -> Ended {
    let (folder, mut command) = (tempfile::tempdir().unwrap(), script(ranks));
    let wrapper = folder.path().join("without-mpi");
    std::fs::write(&wrapper, WITHOUT_MPI).unwrap();
    command.arg("sh").arg(wrapper).arg(launch::this_program());
    suite::play(&mut command, "two_nodes", role).env("UNISONO_WARNINGS", "off");
    // Network namespaces alone do not prevent processes from sharing memory.
    command.envs([("UNISONO_NODES", ranks), ("UNISONO_NETWORK", "tcp")]);
    launch::run(command, DEADLINE)
}

/// Returns the reason why this machine cannot simulate nodes, if it cannot.
fn obstacle() -> Option<String> {
    static OBSTACLE: LazyLock<Option<String>> = LazyLock::new(|| {
        let mut command = Command::new(SCRIPT);
        command.args(["--rate", "1gbit", "--check"]);
        let ended = launch::run(command, DEADLINE);
        match ended.status.code() {
            Some(0) => None,
            Some(code) if UNABLE.contains(&code) => Some(ended.stderr.trim().replace('\n', "; ")),
            _ => panic!("{SCRIPT} --check: {ended}"),
        }
    });
    OBSTACLE.clone()
}

/// The ranks of each node, the network, the resulting transport, the roles of one job, and the roles of the deep suite only. The
/// latter take minutes if ranks share a core, with a context switch for every message.
type World = (&'static str, &'static str, &'static str, &'static [&'static str], &'static [&'static str]);

// Four nodes exchange several chunks in a step.
const WORLDS: [World; 6] = [
    (
        "2,2",
        "auto",
        "shm+tcp",
        &["place", "auto", "bits", "blocks", "stress", "in flight"],
        &["conformance", "registered"],
    ),
    ("3,1", "auto", "shm+tcp", &["place", "auto", "bits", "stress"], &["conformance", "blocks"]),
    ("1,1,1", "auto", "tcp", &["place", "bits", "stress"], &["conformance", "blocks"]),
    ("2,1,1,1", "auto", "shm+tcp", &["place", "bits"], &["blocks"]),
    ("2,2", "mpi", "shm+mpi", &["place", "bits", "stress", "in flight"], &["blocks"]),
    ("1,1", "mpi", "mpi", &["place"], &[]),
];

/// The worlds of processes without MPI.
const PROCESSES: [(&str, &str, &[&str], &[&str]); 3] = [
    ("2,1", "shm+tcp", &["place", "stress", "bits"], &[]),
    ("1,1", "tcp", &["place", "in flight"], &[]),
    ("1,1,1", "tcp", &["place"], &["conformance"]),
];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (ranks, network, transport, quick, deep) in WORLDS {
        // For the worlds of threads with which bits are compared.
        let settings = [("UNISONO_NODES", ranks), ("UNISONO_NETWORK", network)];
        for (roles, is_deep) in [(quick, false), (deep, true)] {
            let job =
                move || over_nodes(&launch(ranks, &roles::job(roles), &settings), ranks, roles, transport);
            let test = Test::new(format!("{} over nodes of {ranks} by {network}", roles.join(", ")), job);
            tests.extend((!roles.is_empty()).then(|| if is_deep { test.deep() } else { test }));
        }
    }
    for (ranks, transport, quick, deep) in PROCESSES {
        for (roles, is_deep) in [(quick, false), (deep, true)] {
            let job = move || {
                over_nodes(&launch_without_mpi(ranks, &roles::job(roles)), ranks, roles, transport);
            };
            let test = Test::new(format!("{} without MPI over nodes of {ranks}", roles.join(", ")), job);
            tests.extend((!roles.is_empty()).then(|| if is_deep { test.deep() } else { test }));
        }
    }
    for network in ["tcp", "mpi"] {
        let test = move || disagreement(&[("UNISONO_NETWORK", network)]);
        tests.push(Test::new(format!("ranks that disagree over nodes by {network}"), test));
    }
    tests.into_iter().map(|test| test.unless(obstacle)).collect()
}

/// Checks the roles of a job, the reported node of every rank, and that `auto` chooses a hierarchical algorithm.
fn over_nodes(ended: &Ended, ranks: &str, roles: &[&str], transport: &str) {
    let sizes: Vec<usize> = ranks.split(',').map(|size| size.parse().unwrap()).collect();
    let all = sizes.iter().sum();
    roles::expect(ended, all, roles, transport);
    if roles.contains(&"auto") {
        assert_eq!(ended.stdout.matches("levels: true").count(), all, "{ended}");
    }
    let nodes = sizes.iter().enumerate().flat_map(|(node, &size)| vec![(node, size); size]);
    for (rank, (node, size)) in nodes.enumerate().filter(|_| roles.contains(&"place")) {
        let (nodes, host) = (sizes.len(), node + 1);
        let expected = format!(
            "rank {rank} on node {node} of {nodes}, with {size} ranks, host node{host}, {transport}\n"
        );
        assert!(ended.stdout.contains(&expected), "{expected} in {ended}");
    }
    let oversubscribed = ended.stdout.matches("oversubscribed: true").count();
    assert!(oversubscribed == 0 || oversubscribed == all, "all ranks or none: {ended}");
}

/// Checks that no rank gets a result, and that a rank that detects the mismatch names both sides.
fn disagreement(settings: &[(&str, &str)]) {
    let ended = launch("2,2", "disagree", settings);
    assert!(!ended.status.success(), "{}", ended.stdout);
    assert!(!ended.stdout.contains("result: true"), "{}", ended.stdout);
    let named = |line: &str| line.contains("of 1000000 f32") && line.contains("of 999999 f32");
    assert!(ended.stderr.lines().any(named), "{}", ended.stderr);
}
