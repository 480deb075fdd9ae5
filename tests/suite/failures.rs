//! One rank fails, and all end: every rank within ten seconds, with an exit code that is not 0, and the first cause comes
//! first.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use unisono::{Communicator, ReduceOp};
use unisono_testing::launch::{self, Ended};
use unisono_testing::left;
use unisono_testing::suite::{self, Test};

use crate::common::no_ucx;

mod nodes;

/// The longest time of one of these: the work before a rank fails, ten seconds, and the clean-up of a launcher.
const DEADLINE: Duration = Duration::from_secs(30);
/// The longest time that ranks may live after one has failed.
const END: Duration = Duration::from_secs(10);
const RANKS: usize = 3;
/// Names a file for the moment at which rank 1 fails, or at which a link is to be cut.
const MOMENT: &str = "UNISONO_TEST_MOMENT";
/// The prefixes of roles that one process plays for all ranks, and that ranks play in a group of all of them.
const AS_THREADS: &str = "threads: ";
const IN_GROUP: &str = "group: ";

pub(crate) fn play(role: &str) -> ExitCode {
    if let Some(role) = role.strip_prefix(AS_THREADS) {
        return unisono::run_threads(RANKS, |comm| fail_or_see(role, comm));
    }
    unisono::run(|comm| {
        let Some(role) = role.strip_prefix(IN_GROUP) else { return fail_or_see(role, comm) };
        let mut group = comm.group(&[2, 1, 0])?.expect("all are in it");
        // The group would be gone before the world hears of it.
        fail_or_see(role, &mut group).inspect_err(|error| group.fail(&error.to_string()))
    })
}

type Failure = Box<dyn std::error::Error>;

/// Makes some all-reduces with the others, and then, on rank 1, something else.
fn fail_or_see(role: &str, comm: &mut Communicator) -> Result<(), Failure> {
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
            // The report must not wait for the end.
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
        ("asked", 1) => ask(),
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
        "late" | "asked" | "sockets" | "closes its files" => {
            comm.all_reduce(&mut array, ReduceOp::Max)?;
        }
        _ => loop {
            comm.all_reduce(&mut array, ReduceOp::Max)?;
        },
    }
    Ok(())
}

/// Writes the file whose time is the moment of the failure, if there is to be one.
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
    // SAFETY: what the library has open it checks before it uses it.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) }, 0);
    // Many ticks of its watchdog.
    std::thread::sleep(Duration::from_millis(500));
}

/// Asks this process for its records, and waits until they are there.
fn ask() {
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

/// Longer than a test may take, and without a call.
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
    /// Processes that no MPI has launched.
    Processes,
    /// A group of such processes.
    Group,
    /// Such processes that share no memory, as if they were on several machines.
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
        add("a rank that is asked what it did", world, Box::new(move || asked(world)));
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

/// All ranks end, the first line that we say is the cause, the others say that they end because of it, and nothing is left.
fn fails(world: World, role: &str, cause: &str) {
    let files = left::shared_files();
    let (Ended { status, stdout, stderr }, took) = start(world, role, &[]);
    let told = format!("{status} after {took:?}\n{stdout}\n{stderr}");
    assert!(!status.success(), "{told}");
    assert!(took < END, "{told}");
    let said: Vec<_> = stderr.lines().filter(|line| line.starts_with("unisono: ")).collect();
    let by = if role == "leaves" { "rank " } else { "rank 1 (host " };
    let is_cause = |line: &&str| {
        line.contains(cause) && line.contains("(host ") && line.starts_with(&format!("unisono: {by}"))
    };
    let place = said.iter().position(is_cause);
    let is_told = |line: &&&str| line.contains(": aborted because rank ") && line.contains(cause);
    let speak = said.iter().filter(is_told).count();
    if world == World::Threads || !role.starts_with("killed") || role.ends_with("SIGTERM") {
        assert_eq!(place, Some(0), "{told}");
        // Both others may see at the same moment that a rank has left.
        let see = said.iter().filter(|line| role == "leaves" && is_cause(line) && !is_told(line)).count();
        assert!(speak + see >= 2, "{told}");
    } else if matches!(world, World::Processes | World::Group) || launch::is_open_mpi() {
        // It sees that too, and may pass on what the ranks write in another order.
        assert!(place.is_some() && speak == 2, "{told}");
    } else {
        // MPICH's launcher kills the others at once, maybe before any of them has said a word, and speaks itself.
        assert!(place.is_some() || stdout.contains("BAD TERMINATION"), "{told}");
    }
    nothing_is_left(&stdout, &files);
}

fn nothing_is_left(stdout: &str, files: &[String]) {
    let processes = stdout.lines().filter_map(|line| line.strip_prefix("process "));
    left::nothing(processes.filter_map(|process| process.split(' ').next()), RANKS, files);
}

/// A wait is warned of by one rank, which names who is missing, and what that one did last; and then all goes on.
fn late(world: World) {
    let (ended, _) = start(world, "late", &[("UNISONO_WARN_S", "0.5")]);
    let Ended { stderr, .. } = ended.expect_success();
    // On a busy machine a rank may have been late before.
    let said = stderr.lines().filter(|line| line.starts_with("unisono: "));
    let said: Vec<_> = said.skip_while(|line| !line.contains("in all-reduce #3")).collect();
    assert!(said.first().is_some_and(|first| first.contains("rank 1 is missing")), "{stderr}");
    assert!(said[1].contains("rank 1 (host ") && said[1].contains("its last was all-reduce #2"), "{stderr}");
    let warnings = said.iter().filter(|line| line.contains("missing")).count();
    assert!(
        (1..=3).contains(&warnings),
        "by one rank, at 0.5 s, at 1 s, and if it is very late at 2 s: {stderr}"
    );
}

/// A rank that gets SIGUSR1 writes its records and goes on; all ranks that are in its process do.
fn asked(world: World) {
    let folder = tempfile::tempdir().unwrap();
    let (ended, _) = start(world, "asked", &[("UNISONO_FLIGHT_DIR", folder.path().to_str().unwrap())]);
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
