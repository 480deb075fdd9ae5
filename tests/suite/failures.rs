//! One rank fails, and all ranks end within ten seconds, with a non-zero exit code. The first cause is printed first.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use unisono::{Communicator, ReduceOp};
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;
use unisono_testing::suite::{self, Test};

use crate::common::no_ucx;

mod nodes;

/// The longest time of a test: the work before a rank fails, ten seconds, and the clean-up of a launcher.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest time for which ranks may live after one has failed.
const END: Duration = Duration::from_secs(10);
const RANKS: usize = 3;
/// The variable with a file that marks the moment at which rank 1 fails or a link is cut.
const MOMENT: &str = "UNISONO_TEST_MOMENT";
/// The prefixes of roles of one process with all ranks as threads, and of roles in a group of all ranks.
const AS_THREADS: &str = "threads: ";
const IN_GROUP: &str = "group: ";

pub(crate) fn play(role: &str) -> ExitCode {
    if let Some(role) = role.strip_prefix(AS_THREADS) {
        return unisono::run_threads(RANKS, |comm| fail_or_wait(role, comm));
    }
    unisono::run(|comm| {
        let Some(role) = role.strip_prefix(IN_GROUP) else { return fail_or_wait(role, comm) };
        let mut group = comm.group(&[2, 1, 0])?.expect("all are in it");
        // The group would be dropped before the world is informed.
        fail_or_wait(role, &mut group).inspect_err(|error| group.fail(&error.to_string()))
    })
}

type Failure = Box<dyn std::error::Error>;

/// Makes some all-reduces with the others. Then rank 1 fails in the way of its role.
fn fail_or_wait(role: &str, comm: &mut Communicator) -> Result<(), Failure> {
    println!("process {} of rank {}", std::process::id(), comm.rank());
    let mut array = vec![1.0_f32; 100_000];
    for _ in 0..3 {
        comm.all_reduce(&mut array, ReduceOp::Max)?;
    }
    match (role, comm.rank()) {
        ("panic", 1) => panic!("on purpose"),
        ("error", 1) => return Err("the disk of this rank is full".into()),
        ("fail", 1) => {
            comm.fail("it does not like the data");
            // The report must not wait for the end of the rank.
            std::thread::sleep(Duration::from_secs(20));
        }
        ("killed" | "killed beside one that computes", 1) => {
            the_moment_has_come();
            launch::kill_this_process();
        }
        ("killed by SIGTERM", 1) => {
            signal_this_process("-TERM");
            std::thread::sleep(DEADLINE);
        }
        ("dump", 1) => request_dump(),
        ("killed beside one that computes", 2) => compute(),
        ("leaves", 1) => return Ok(()),
        // The script cuts the link then.
        ("cut", 0) => the_moment_has_come(),
        ("sockets", 0) => println!("sockets: {}", sockets()),
        ("late", 1) => std::thread::sleep(Duration::from_millis(1500)),
        ("closes its files", 1) => close_files(),
        _ => {}
    }
    match role {
        "late" | "dump" | "sockets" | "closes its files" => {
            comm.all_reduce(&mut array, ReduceOp::Max)?;
        }
        _ => loop {
            comm.all_reduce(&mut array, ReduceOp::Max)?;
        },
    }
    Ok(())
}

/// Writes the file whose time is the moment of the failure, if the test names one.
fn the_moment_has_come() {
    if let Some(file) = std::env::var_os(MOMENT) {
        std::fs::write(file, "").expect("the file is written");
    }
}

fn sockets() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("/proc is there").flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Closes all files from 3 up, as daemons do.
fn close_files() {
    // SAFETY: the library checks its files before it uses them.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) }, 0);
    // Longer than many ticks of its watchdog.
    std::thread::sleep(Duration::from_millis(500));
}

/// Requests the flight recorder of this process by a signal, and waits until it is written.
fn request_dump() {
    let folder = std::env::var("UNISONO_FLIGHT_DIR").expect("the runner names a folder");
    let started = Instant::now();
    signal_this_process("-USR1");
    while !Path::new(&folder).join("rank-1.json").exists() && started.elapsed() < DEADLINE {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal_this_process(signal: &str) {
    let process = std::process::id().to_string();
    Command::new("kill").args([signal, &process]).status().expect("kill starts");
}

/// Computes without a call, longer than a test may take.
fn compute() {
    let started = Instant::now();
    while started.elapsed() < DEADLINE {
        std::hint::spin_loop();
    }
}

/// The ways to start ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    Threads,
    /// Processes without MPI.
    Processes,
    /// A group of such processes.
    Group,
    /// Such processes without shared memory, as on several machines.
    Connections,
    /// Connections over UCX.
    Ucx,
    SharedMemory,
    Messages,
}

fn start(world: World, role: &str, settings: &[(&str, &str)]) -> (Ended, Duration) {
    let program = launch::this_program();
    let mut command = match world {
        World::Threads => Command::new(program),
        World::Processes | World::Group | World::Connections | World::Ucx => {
            launch::processes(RANKS, &program)
        }
        World::SharedMemory | World::Messages => launch::mpirun(RANKS, &program),
    };
    let role = match world {
        World::Threads => format!("{AS_THREADS}{role}"),
        World::Group => format!("{IN_GROUP}{role}"),
        _ => role.to_owned(),
    };
    match world {
        World::Connections => command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")]),
        World::Ucx => {
            command.envs([("UNISONO_NETWORK", "ucx"), ("UNISONO_NODES", "1,1,1"), ("UCX_TLS", "tcp")])
        }
        World::Messages => command.env("UNISONO_TRANSPORT", "mpi"),
        World::Threads | World::Group | World::Processes | World::SharedMemory => &mut command,
    };
    // Notices about the launch would come before the first cause.
    suite::play(&mut command, "failures", &role).env("UNISONO_WARNINGS", "off");
    let started = Instant::now();
    let ended = launch::run(command.envs(settings.iter().copied()), DEADLINE);
    (ended, started.elapsed())
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |role: &'static str, world: World, test: Box<dyn FnOnce() + Send>| {
        let test = Test::new(format!("{role} over {world:?}"), test);
        tests.push(if world == World::Ucx { test.unless(no_ucx) } else { test });
    };
    for world in [
        World::Threads,
        World::Processes,
        World::Connections,
        World::Ucx,
        World::SharedMemory,
        World::Messages,
    ] {
        for (role, cause) in [
            ("panic", "panicked"),
            ("error", "the disk of this rank is full"),
            ("fail", "it does not like the data"),
            ("leaves", "rank 1 has left the world"),
        ] {
            add(role, world, Box::new(move || fails(world, role, cause)));
        }
        add("flight recorder on SIGUSR1", world, Box::new(move || dump_on_request(world)));
    }
    for (role, cause) in [
        ("panic", "panicked"),
        ("error", "the disk of this rank is full"),
        ("fail", "it does not like the data"),
        ("killed", "its process was killed"),
        ("killed beside one that computes", "its process was killed"),
    ] {
        add(role, World::Group, Box::new(move || fails(World::Group, role, cause)));
    }
    for world in [World::Processes, World::Group] {
        let test = move || drop(start(world, "closes its files", &[]).0.expect_success());
        add("a rank that closes its files", world, Box::new(test));
    }
    for world in [World::Processes, World::Connections, World::Ucx, World::SharedMemory, World::Messages] {
        for (role, cause) in [
            ("killed", "its process was killed"),
            ("killed by SIGTERM", "it was ended by SIGTERM"),
            ("killed beside one that computes", "its process was killed"),
        ] {
            add(role, world, Box::new(move || fails(world, role, cause)));
        }
    }
    for world in [World::Threads, World::Processes, World::Connections, World::SharedMemory, World::Messages]
    {
        tests.push(Test::new(format!("a rank that is late over {world:?}"), move || late(world)).timed());
    }
    tests.extend(nodes::tests());
    tests
}

/// Checks that all ranks end, that the cause is printed first and the others report it as their cause, and that nothing is left
/// behind.
fn fails(world: World, role: &str, cause: &str) {
    let files = left::shared_files();
    let (Ended { status, stdout, stderr }, took) = start(world, role, &[]);
    let report = format!("{status} after {took:?}\n{stdout}\n{stderr}");
    assert!(!status.success(), "{report}");
    assert!(took < END, "{report}");
    let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("unisono: ")).collect();
    let by = if role == "leaves" { "rank " } else { "rank 1 (host " };
    let is_cause = |line: &&str| {
        line.contains(cause) && line.contains("(host ") && line.starts_with(&format!("unisono: {by}"))
    };
    let place = lines.iter().position(is_cause);
    let is_abort = |line: &&&str| line.contains(": aborted because rank ") && line.contains(cause);
    let aborts = lines.iter().filter(is_abort).count();
    if world == World::Threads || !role.starts_with("killed") || role.ends_with("SIGTERM") {
        assert_eq!(place, Some(0), "{report}");
        // Both others may detect at the same moment that a rank has left.
        let detections =
            lines.iter().filter(|line| role == "leaves" && is_cause(line) && !is_abort(line)).count();
        assert!(aborts + detections >= 2, "{report}");
    } else if matches!(world, World::Processes | World::Group) || launch::is_open_mpi() {
        // Open MPI's mpirun detects it too, and may forward the ranks' output in another order.
        assert!(place.is_some() && aborts == 2, "{report}");
    } else {
        // MPICH's launcher kills the others at once, possibly before any of them has printed a report, and prints its own.
        assert!(place.is_some() || stdout.contains("BAD TERMINATION"), "{report}");
    }
    nothing_is_left(&stdout, &files);
}

fn nothing_is_left(stdout: &str, files: &[String]) {
    let processes = stdout.lines().filter_map(|line| line.strip_prefix("process "));
    left::nothing(processes.filter_map(|process| process.split(' ').next()), RANKS, files);
}

/// Checks that one rank warns of a long wait, with the missing rank and its last call, and that all then continue.
fn late(world: World) {
    let (ended, _) = start(world, "late", &[("UNISONO_WARN_S", "0.5")]);
    let Ended { stderr, .. } = ended.expect_success();
    // On a busy machine a rank may have been late before.
    let lines = stderr.lines().filter(|line| line.starts_with("unisono: "));
    let lines: Vec<_> = lines.skip_while(|line| !line.contains("in all-reduce #3")).collect();
    assert!(lines.first().is_some_and(|first| first.contains("rank 1 is missing")), "{stderr}");
    assert!(
        lines[1].contains("rank 1 (host ") && lines[1].contains("its last call was all-reduce #2"),
        "{stderr}"
    );
    let warnings = lines.iter().filter(|line| line.contains("missing")).count();
    assert!(
        (1..=3).contains(&warnings),
        "by one rank, at 0.5 s, at 1 s and, for a very late rank, at 2 s: {stderr}"
    );
}

/// Checks that a rank that gets SIGUSR1 writes its flight recorder and continues, as do all ranks of its process.
fn dump_on_request(world: World) {
    let folder = tempfile::tempdir().unwrap();
    let (ended, _) = start(world, "dump", &[("UNISONO_FLIGHT_DIR", folder.path().to_str().unwrap())]);
    ended.expect_success();
    let written: Vec<_> =
        (0..RANKS).filter(|rank| folder.path().join(format!("rank-{rank}.json")).exists()).collect();
    assert_eq!(written, if world == World::Threads { vec![0, 1, 2] } else { vec![1] });
    let dump =
        unisono::status::Dump::from_json(&std::fs::read(folder.path().join("rank-1.json")).unwrap()).unwrap();
    assert_eq!((dump.why.as_str(), dump.rank, dump.failed), ("SIGUSR1", 1, None));
    let last = dump.records.last().unwrap();
    assert_eq!((last.sequence, last.operation.as_str(), last.count), (2, "all-reduce", 100_000));
}
