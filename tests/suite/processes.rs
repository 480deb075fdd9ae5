//! Worlds of processes without MPI: any launcher that sets RANK and WORLD_SIZE starts them.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use unisono::{Communicator, ReduceOp};
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;
use unisono_testing::suite::{self, Test};

use crate::common::{no_ucx, roles};

const DEADLINE: Duration = Duration::from_secs(240);
/// The longest time in which ranks must detect the end of another.
const SOON: Duration = Duration::from_secs(10);

pub(crate) fn play(role: &str) -> ExitCode {
    if role == "killed" {
        return unisono::run(killed);
    }
    if role == "is quiet for too long" {
        return unisono::run(is_quiet_for_too_long);
    }
    roles::play(role, |_, _| false)
}

/// Simulates ranks on two machines.
const CONNECTED: &[(&str, &str)] = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,1")];
const THREE_NODES: &[(&str, &str)] = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,2,1")];
const EIGHT_NODES: &[(&str, &str)] = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1,1,1,1,1,1")];

/// Nodes over UCX's TCP, and over UCX's shared memory, which reports the failure of a peer only on request.
const OVER_UCX: &[(&str, &str)] = &[("UNISONO_NETWORK", "ucx"), ("UNISONO_NODES", "2,1"), ("UCX_TLS", "tcp")];
const OVER_UCX_MEMORY: &[(&str, &str)] = &[
    ("UNISONO_NETWORK", "ucx"),
    ("UNISONO_NODES", "1,1"),
    ("UCX_TLS", "shm,self"),
    ("UCX_MM_ERROR_HANDLING", "y"),
];

type World = (usize, &'static [(&'static str, &'static str)], &'static str, &'static [&'static str]);

const WORLDS: [World; 9] = [
    (1, &[], "threads", &["conformance", "refused", "groups"]),
    (
        2,
        &[],
        "shm",
        &["conformance", "registered", "bits", "in flight", "point to point", "refused", "groups", "custom"],
    ),
    (
        3,
        &[],
        "shm",
        &["custom", "conformance", "bits", "in flight", "point to point", "stress", "refused", "groups"],
    ),
    (4, &[], "shm", &["custom", "conformance", "point to point", "groups", "groups conform"]),
    (
        3,
        CONNECTED,
        "shm+tcp",
        &["custom", "conformance", "registered", "bits", "in flight", "point to point", "stress", "groups"],
    ),
    (5, THREE_NODES, "shm+tcp", &["bits", "blocks"]),
    (
        3,
        OVER_UCX,
        "shm+ucx",
        &["custom", "conformance", "registered", "bits", "in flight", "point to point", "stress", "groups"],
    ),
    (2, OVER_UCX_MEMORY, "ucx", &["conformance", "bits", "in flight", "point to point", "stress"]),
    (8, EIGHT_NODES, "tcp", &["custom"]),
];

pub(crate) fn tests() -> Vec<Test> {
    let world = |(ranks, settings, transport, roles): World| {
        let job =
            move || roles::expect(&launch(ranks, &roles::job(roles), settings), ranks, roles, transport);
        let test = Test::new(format!("{} at {ranks} ranks over {transport}", roles.join(", ")), job);
        if transport.contains("ucx") { test.unless(no_ucx) } else { test }
    };
    let worlds = WORLDS.into_iter().map(world);
    let others = [
        Test::new("ranks of a session find each other repeatedly", again),
        Test::new("ranks find each other in the bootstrap folder", in_folder),
        Test::new("different settings are refused with both values", settings),
        Test::new("different world sizes are refused with both values", sizes),
        Test::new("invalid rank numbers are refused", numbers),
        Test::new("ranks of several machines need a rendezvous address", no_place),
        Test::new("ranks in separate containers connect", containers).unless(launch::no_containers),
        Test::new("ranks of several machines meet at rank 0", meet),
        Test::new("a missing interface is refused on all ranks", no_interface),
        Test::new("a killed rank ends the job and leaves nothing behind", || killed_ends_all(&[])),
        Test::new("a killed rank ends the job over UCX", || killed_ends_all(OVER_UCX)).unless(no_ucx),
        Test::new("UCX that cannot connect is an error on all ranks", ucx_without_transport).unless(no_ucx),
        Test::new("UCX that is not installed is an error on all ranks", ucx_is_missing).unless(no_ucx),
        Test::new("a quiet section has the deadline of the environment", quiet_deadline),
    ];
    worlds.chain(others).collect()
}

fn launch(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let mut command = launch::processes(ranks, &launch::this_program());
    suite::play(&mut command, "processes", role).env("UNISONO_WARNINGS", "off");
    launch::run(command.envs(settings.iter().copied()), DEADLINE)
}

/// Returns this program as a rank that joins a world.
fn joins() -> Command {
    let mut command = Command::new(launch::this_program());
    suite::play(&mut command, "processes", "joins");
    command
}

/// Returns a process for each of these environments, all at once.
fn each(all: &[&[(&str, &str)]]) -> Vec<Ended> {
    let folder = tempfile::tempdir().unwrap();
    let start = |variables: &[(&str, &str)]| {
        let mut command = joins();
        command.env("UNISONO_BOOTSTRAP_DIR", folder.path()).envs(variables.iter().copied());
        launch::run(command, DEADLINE)
    };
    std::thread::scope(|scope| {
        let started: Vec<_> = all.iter().map(|variables| scope.spawn(|| start(variables))).collect();
        started.into_iter().map(|ended| ended.join().unwrap()).collect()
    })
}

fn expect_world(ended: &Ended) {
    roles::expect(ended, 3, &["joins"], "shm");
    assert_eq!(ended.stderr, "");
}

fn again() {
    for _ in 0..3 {
        expect_world(&launch(3, "joins", &[]));
    }
}

fn in_folder() {
    let folder = tempfile::tempdir().unwrap();
    let meeting = folder.path().join("new/one");
    for _ in 0..2 {
        expect_world(&launch(3, "joins", &[("UNISONO_BOOTSTRAP_DIR", meeting.to_str().unwrap())]));
        assert_eq!(fs::read_dir(&meeting).unwrap().count(), 0, "the folder is empty again");
    }
}

/// Checks that all ranks fail, and that each error contains these texts.
fn expect_refusals(all: &[Ended], expected: &[&str]) {
    for Ended { status, stderr, stdout } in all {
        assert_eq!(status.code(), Some(3), "{stdout}{stderr}");
        assert!(expected.iter().any(|text| stderr.contains(text)), "{stderr}");
    }
}

fn settings() {
    let of = |rank, size| [("RANK", rank), ("WORLD_SIZE", "2"), ("UNISONO_SEGMENT_BYTES", size)];
    let all = each(&[&of("0", "64"), &of("1", "128")]);
    expect_refusals(&all, &["UNISONO_SEGMENT_BYTES is 64 on rank 0 ("]);
    assert!(all.iter().all(|ended| ended.stderr.contains("and 128 on rank 1 (")));
    // A rank with invalid settings does not make the others wait.
    let all = each(&[&of("0", "64"), &of("1", "65")]);
    expect_refusals(&all, &["on rank 1 ("]);
}

fn sizes() {
    let all = each(&[
        &[("RANK", "0"), ("WORLD_SIZE", "2")],
        &[("RANK", "1"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")],
    ]);
    let expected = [
        "rank 0 is in a world of 2 ranks, but rank 1 in one of 3",
        "rank 1 is in a world of 3 ranks, but rank 0 in one of 2",
    ];
    // The rank that detects it first ends, and the other may detect that instead.
    expect_refusals(&all, &[expected[0], expected[1], "has ended before the world began"]);
    assert!(all.iter().any(|ended| expected.iter().any(|text| ended.stderr.contains(text))));
}

fn numbers() {
    for (rank, ranks) in [("2", "2"), ("first", "2"), ("0", "0")] {
        let all = each(&[&[("RANK", rank), ("WORLD_SIZE", ranks)]]);
        expect_refusals(&all, &["RANK and WORLD_SIZE are missing or invalid"]);
    }
}

fn no_place() {
    let mut command = joins();
    command.envs([("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")]);
    command.env_remove("MASTER_ADDR");
    let ended = launch::run(command, DEADLINE);
    expect_refusals(&[ended], &["rank 0 is one of 4, of which 2 are on this machine: for ranks of several"]);
}

fn containers() {
    let folder = tempfile::tempdir().unwrap();
    // At an address, and in a folder.
    for meeting in [std::path::Path::new(""), folder.path()] {
        let mut command = launch::containers(3, &launch::this_program());
        suite::play(&mut command, "processes", "joins").env("UNISONO_BOOTSTRAP_DIR", meeting);
        roles::expect(&launch::run(command, DEADLINE), 3, &["joins"], "tcp");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is empty again");
}

fn meet() {
    let port = launch::free_port();
    let start = |rank: usize| {
        let mut command = joins();
        command.envs([("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "1")]);
        command.env("RANK", rank.to_string()).env("UNISONO_WARNINGS", "off");
        command.env("MASTER_ADDR", "localhost").env("MASTER_PORT", port.to_string());
        command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")]);
        launch::run(command, DEADLINE).expect_success()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || start(rank))).collect();
        for (rank, ended) in ranks.into_iter().enumerate() {
            let Ended { stdout, .. } = ended.join().unwrap();
            assert!(stdout.starts_with(&format!("rank {rank} of 3 over tcp\n")), "{stdout}");
        }
    });
}

fn no_interface() {
    let settings = [("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1"), ("UNISONO_INTERFACE", "nothing9")];
    let ended = launch(2, "joins", &settings);
    assert!(!ended.status.success());
    let expected =
        "rank 0 cannot listen for others: UNISONO_INTERFACE is \"nothing9\", and this machine has no such";
    assert_eq!(ended.stderr.matches(expected).count(), 2, "{}", ended.stderr);
}

/// Makes calls until rank 1 is killed.
fn killed(comm: &mut Communicator) -> unisono::Result<()> {
    println!("process {}", std::process::id());
    let mut array = comm.alloc::<f32>(1 << 20)?;
    for call in 0.. {
        comm.all_reduce(&mut array, ReduceOp::Max)?;
        if comm.rank() == 1 && call == 10 {
            launch::kill_this_process();
        }
    }
    Ok(())
}

fn killed_ends_all(settings: &[(&str, &str)]) {
    let before = left::shared_files();
    let began = Instant::now();
    let ended = launch(3, "killed", settings);
    let report = format!("{}\n{}\n{}", ended.status, ended.stdout, ended.stderr);
    assert!(!ended.status.success() && began.elapsed() < SOON, "{report}");
    assert!(ended.stderr.contains("unisono: rank 1 (host ") && ended.stderr.contains("has died"), "{report}");
    assert_eq!(
        ended.stderr.matches("aborted because rank 1 failed: its process was killed").count(),
        2,
        "{report}"
    );
    left::nothing(ended.stdout.lines().filter_map(|line| line.strip_prefix("process ")), 3, &before);
}

/// UCX's shared memory alone does not report the failure of a peer, so it cannot be used.
fn ucx_without_transport() {
    let settings = [("UNISONO_NETWORK", "ucx"), ("UNISONO_NODES", "1,1"), ("UCX_TLS", "shm,self")];
    refuses_ucx(&settings, "it cannot connect with rank 1 over UCX: UCX reports: Destination is unreachable");
}

/// An invalid library of this name precedes that of the system.
fn ucx_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libucp.so.0"), "no library").unwrap();
    let folder = folder.path().to_str().unwrap();
    let settings = [("UNISONO_NETWORK", "ucx"), ("UNISONO_NODES", "1,1"), ("LD_LIBRARY_PATH", folder)];
    refuses_ucx(&settings, "UCX cannot be loaded: ");
}

fn refuses_ucx(settings: &[(&str, &str)], why: &str) {
    let ended = launch(2, "joins", settings);
    assert!(!ended.status.success(), "{ended}");
    let expected = format!("UNISONO_NETWORK is ucx, but rank 0: {why}");
    assert_eq!(ended.stderr.matches(&expected).count(), 2, "{ended}");
}

/// Rank 1 stays in a quiet section.
fn is_quiet_for_too_long(comm: &mut Communicator) -> unisono::Result<()> {
    comm.barrier()?;
    if comm.rank() == 1 {
        comm.quiet("validation", |_| std::thread::sleep(DEADLINE));
    }
    comm.barrier()
}

/// The default deadline is a day. Here it is short, but longer than that of other waits.
fn quiet_deadline() {
    let settings = [("UNISONO_TIMEOUT_S", "0.2"), ("UNISONO_QUIET_TIMEOUT_S", "1")];
    let began = Instant::now();
    let ended = launch(2, "is quiet for too long", &settings);
    let took = began.elapsed();
    assert!(!ended.status.success(), "{ended}");
    assert!(took > Duration::from_secs(1) && took < SOON, "after {took:?}: {ended}");
    assert!(ended.stderr.contains("for rank 1"), "{ended}");
}
