//! Worlds under mpirun.

use std::process::ExitCode;
use std::time::Duration;

use unisono::mpi::traits::{Communicator as _, Destination as _, Source as _};
use unisono::status::Flight;
use unisono::{Algorithm, Communicator, ReduceOp};
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;
use unisono_testing::suite::{self, Test};

use crate::common::disagreements::{DISAGREEMENTS, OTHER_LABELS, disagree};
use crate::common::roles;

mod attach;
mod ending;

const DEADLINE: Duration = Duration::from_secs(240);

pub(crate) fn play(role: &str) -> ExitCode {
    match role {
        "left" => return ending::left(),
        "owed" => return owed(),
        "alone" => return attach::alone(),
        "failed rank stays" => return ending::fails(false),
        "failed rank leaves" => return ending::fails(true),
        _ => {}
    }
    roles::play(role, |role, comm| {
        match role {
            "drops" => drops(comm.split(Some(0), 0).unwrap().unwrap()),
            "killed" => killed(comm),
            "long" => long_messages(comm),
            "deadlines" => deadlines(comm),
            "nodes" => assert_eq!(comm.topology().nodes(), 2),
            "count" | "dtype" | "op" | "algorithm" | "vendor" | "order" | "label" | "message" => {
                disagree(role, comm);
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
            _ => return false,
        }
        true
    })
}

/// A rank is in a quiet section for longer than the timeout of others, and rank 0 works for all. The short timeout remains set, so
/// it is the last role of a job.
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

/// Rank 1 enters the collective once it has an MPI message, whose sender already waits in the collective.
fn owed() -> ExitCode {
    const COUNT: usize = 1 << 20;
    let universe = unisono::mpi::initialize().expect("MPI is not initialised yet");
    let world = universe.world();
    attach::two_groups_are_refused(&world, world.rank());
    let mut comm = Communicator::attach(&world).unwrap();
    let sent = vec![1_u64; COUNT];
    unisono::mpi::request::scope(|scope| {
        let sending = (comm.rank() == 0).then(|| world.process_at_rank(1).immediate_send(scope, &sent[..]));
        if comm.rank() == 1 {
            let (received, _) = world.process_at_rank(0).receive_vec::<u64>();
            assert!(received == sent);
        }
        comm.all_reduce(&mut [1_u8; 100], ReduceOp::Sum).unwrap();
        if let Some(sending) = sending {
            sending.wait();
        }
    });
    drop(comm);
    ExitCode::SUCCESS
}

/// Messages of many segments, with and without a partial one, copied and reduced. The segment size is a cache line.
fn long_messages(comm: &mut Communicator) {
    for algorithm in Algorithm::ALL {
        comm.set_choice(algorithm).unwrap();
        let mut buffer: Vec<f64> = (0..20_011).map(|index| f64::from(index % 1000)).collect();
        comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        let ranks = comm.ranks() as f64;
        assert!(buffer.iter().enumerate().all(|(index, &sum)| sum == (index % 1000) as f64 * ranks));
    }
}

/// Allocating and dropping registered memory leaks nothing, and the memory may outlive its communicator.
fn drops(mut comm: Communicator) {
    const BYTES: usize = 1 << 20;
    assert!(comm.alloc::<u8>(1 << 50).is_err(), "no machine has this much memory");
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
    // `malloc` reserves memory for another thread. Also, the others may not have unmapped this rank's last drops yet.
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

/// Makes calls until rank 1 is killed during one.
fn killed(comm: &mut Communicator) {
    println!("process {}", std::process::id());
    let mut array = comm.alloc::<f32>(1 << 20).unwrap();
    if comm.rank() == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            launch::kill_this_process();
        });
    }
    loop {
        comm.all_reduce(&mut array, ReduceOp::Max).unwrap();
    }
}

fn launch(ranks: usize, role: &str, settings: &[(&str, &str)]) -> Ended {
    let mut command = launch::mpirun(ranks, &launch::this_program());
    suite::play(&mut command, "mpi", role).envs(settings.iter().copied());
    launch::run(command, DEADLINE)
}

/// A world: its name, its settings and its transport, and for each size the roles of one job.
type World = (&'static str, Settings, &'static str, &'static [(usize, Roles)]);
type Roles = &'static [&'static str];
type Settings = &'static [(&'static str, &'static str)];

const SHARED: Settings = &[];
const MESSAGES: Settings = &[("UNISONO_TRANSPORT", "mpi")];
const EVEN: Settings = &[("UNISONO_NODES", "2,2")];
const UNEVEN: Settings = &[("UNISONO_NODES", "3,1")];
/// Unisono's connections between nodes, although MPI has a faster link on one machine.
const CONNECTED: Settings = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "2,2")];
const CONNECTED_ALONE: Settings = &[("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")];
const LATE: Settings = &[("UNISONO_NODES", "1,2"), ("UNISONO_CHAOS", "seed=7,delay_us=300")];
/// Always on, independent of the copy speed measured at start-up.
const COPIED: Settings = &[("UNISONO_KERNEL_COPIES", "on")];
const NOT_COPIED: Settings = &[("UNISONO_KERNEL_COPIES", "off")];
/// The segment size is a cache line.
const SEGMENTS: Settings = &[("UNISONO_SEGMENT_BYTES", "64")];

const IN_SHARED_MEMORY: &[&str] = &[
    "conformance",
    "bits",
    "stress",
    "in flight",
    "vendors",
    "registered",
    "blocks",
    "point to point",
    "drops",
];

/// The worlds, with the roles that they play.
const WORLDS: [World; 11] = [
    ("MPI", SHARED, "mpi", &[(1, &["conformance", "bits"])]),
    (
        "shared memory",
        SHARED,
        "shm",
        &[
            (2, IN_SHARED_MEMORY),
            (3, IN_SHARED_MEMORY),
            (
                4,
                &[
                    "custom",
                    "conformance",
                    "bits",
                    "stress",
                    "in flight",
                    "vendors",
                    "point to point",
                    "deadlines",
                ],
            ),
            (5, &["conformance", "bits"]),
        ],
    ),
    // The default is one of the two below.
    ("memory that the kernel copies", COPIED, "shm", &[(3, &["thresholds", "blocks"])]),
    ("memory that it does not copy", NOT_COPIED, "shm", &[(2, &["thresholds", "point to point"])]),
    (
        "messages",
        MESSAGES,
        "mpi",
        &[
            (2, &["conformance", "bits", "point to point"]),
            (3, &["custom", "conformance", "bits", "blocks", "stress", "in flight", "point to point"]),
            (4, &["custom", "conformance", "bits", "point to point", "groups", "groups conform"]),
        ],
    ),
    (
        "two and two",
        EVEN,
        "shm+mpi",
        &[(
            4,
            &[
                "custom",
                "nodes",
                "conformance",
                "bits",
                "stress",
                "in flight",
                "vendors",
                "point to point",
                "groups",
                "deadlines",
            ],
        )],
    ),
    ("three and one", UNEVEN, "shm+mpi", &[(4, &["custom", "conformance", "bits", "blocks", "stress"])]),
    (
        "connections",
        CONNECTED_ALONE,
        "tcp",
        &[(3, &["conformance", "bits", "blocks", "stress", "in flight", "point to point"])],
    ),
    (
        "connected two and two",
        CONNECTED,
        "shm+tcp",
        &[(
            4,
            &[
                "custom",
                "conformance",
                "bits",
                "stress",
                "in flight",
                "vendors",
                "point to point",
                "groups",
                "groups conform",
                "deadlines",
            ],
        )],
    ),
    ("one and two that are late", LATE, "shm+mpi", &[(3, &["point to point"])]),
    ("messages of many segments", SEGMENTS, "shm", &[(3, &["long"])]),
];

/// Worlds of the deep suite only.
const MORE_WORLDS: [World; 3] = [
    ("memory that the kernel copies", COPIED, "shm", &[(2, &["thresholds", "blocks"])]),
    ("memory that it does not copy", NOT_COPIED, "shm", &[(3, &["thresholds", "blocks"])]),
    ("connected two and two", CONNECTED, "shm+tcp", &[(4, &["registered", "blocks"])]),
];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (place, (world, settings, transport, sizes)) in WORLDS.into_iter().chain(MORE_WORLDS).enumerate() {
        for &(ranks, roles) in sizes {
            let job = move || {
                roles::expect(&launch(ranks, &roles::job(roles), settings), ranks, roles, transport);
            };
            let test = Test::new(format!("{} over {world} at {ranks} ranks", roles.join(", ")), job);
            tests.push(if place < WORLDS.len() { test } else { test.deep() });
        }
    }
    let [of_memory, of_messages] = OTHER_LABELS;
    for (world, settings, of_label) in [
        ("shared memory", SHARED, of_memory),
        ("messages", MESSAGES, of_messages),
        ("connections", CONNECTED_ALONE, of_memory),
    ] {
        for (role, one, other) in DISAGREEMENTS.into_iter().chain([of_label]) {
            let test = move || disagreement(role, settings, one, other);
            let test = Test::new(format!("another {role} over {world}"), test);
            // The transport detects mismatches, so one transport needs to test all kinds of calls.
            let is_quick = settings == SHARED || matches!(role, "count" | "label" | "message");
            tests.push(if is_quick { test } else { test.deep() });
        }
        for (role, cause) in
            [("panic", "has failed before its first collective: it panicked: "), ("late", "for rank 0")]
        {
            let test = move || drop(failure(role, settings, cause));
            tests.push(Test::new(format!("{role} over {world}"), test));
        }
    }
    tests.extend(ending::tests());
    tests.extend([
        Test::new("left over shared memory", || drop(failure("left", SHARED, "rank 0 has left the world"))),
        Test::new("an MPI message makes progress while its sender waits in shared memory", || owing(SHARED)),
        Test::new("an MPI message makes progress while its sender waits for a connection", || {
            owing(CONNECTED_ALONE);
        }),
        Test::new("a communicator of one rank of several is no world of one", attach::is_no_world_of_one),
        Test::new("nodes that do not sum to the world size are refused", wrong_nodes),
        Test::new("flight recorders of all ranks at a deadline", flight_recorders),
        Test::new("a rank that is killed leaves nothing behind", nothing_is_left),
    ]);
    tests
}

fn owing(settings: &[(&str, &str)]) {
    // Otherwise Open MPI's receiver copies the message from the sender's memory, without progress of the sender.
    let settings = [settings, &[("OMPI_MCA_btl_vader_single_copy_mechanism", "none")]].concat();
    let ended = launch(3, "owed", &settings);
    assert!(ended.status.success(), "{}", ended.stderr);
}

/// The whole job ends, and no file is left.
fn nothing_is_left() {
    let before = left::shared_files();
    let ended = launch(2, "killed", &[]);
    assert!(!ended.status.success());
    left::nothing(ended.stdout.lines().filter_map(|line| line.strip_prefix("process ")), 2, &before);
}

/// After a timeout there is a flight recorder of every rank, including the late one, and the report names that rank.
fn flight_recorders() {
    let folder = tempfile::tempdir().unwrap();
    let ended = failure("late", &[("UNISONO_FLIGHT_DIR", folder.path().to_str().unwrap())], "for rank 0");
    let expected = format!("the flight recorders are in {}", folder.path().display());
    assert_eq!(ended.stderr.matches(&expected).count(), 1, "{}", ended.stderr);
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    let findings = Flight::read(folder.path()).unwrap().findings();
    assert!(findings[0].contains("failed: ") && findings[0].contains("for rank 0"), "{findings:#?}");
    let late = findings.iter().find(|finding| finding.starts_with("ranks 1, 2 have waited "));
    let late = late.unwrap_or_else(|| panic!("{findings:#?}"));
    assert!(
        late.contains(" in all-reduce #0 ") && late.contains("rank 0 is missing:\n  rank 0 (process "),
        "{late}"
    );
}

fn wrong_nodes() {
    let ended = launch(2, "nodes", &[("UNISONO_NODES", "2,2")]);
    assert!(!ended.status.success());
    assert!(ended.stderr.contains("which are 4, in a world of 2"), "{}", ended.stderr);
}

fn failure(role: &str, settings: &[(&str, &str)], expected: &str) -> Ended {
    let ended = launch(3, role, settings);
    assert!(!ended.status.success(), "{}", ended.stdout);
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    ended
}

/// Ranks with mismatched calls get no result, and the rank that detects it names both sides.
fn disagreement(role: &str, settings: &[(&str, &str)], one: &str, other: &str) {
    let ended = failure(role, settings, "has failed");
    let named = ended.stderr.lines().any(|line| line.contains(one) && line.contains(other));
    assert!(named, "{one:?} and {other:?} in {}", ended.stderr);
    assert!(!ended.stdout.contains("result: true"), "{}", ended.stdout);
}
