//! One rank fails, and all end: every rank within ten seconds, with an exit code that is not 0, and the first cause comes
//! first. This program launches itself: without a role it is the test runner, with one it is a rank, or all of them.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use unisono::{Communicator, ReduceOp};

mod common;

use unisono_testing::launch::{self, Ended};
use unisono_testing::left;

/// Tells a process that it is a rank, and what it does.
const ROLE: &str = "UNISONO_TEST_ROLE";
/// Tells a process that it is all ranks.
const THREADS: &str = "UNISONO_TEST_THREADS";
/// Tells ranks to do it in a group of all of them.
const IN_GROUP: &str = "UNISONO_TEST_IN_GROUP";
/// How long the longest of these may take: what they do before one fails, ten seconds, and what a launcher takes to clean up.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long ranks may live after one has failed.
const END: Duration = Duration::from_secs(10);
const RANKS: usize = 3;
/// Makes two nodes of this machine.
const TWO_NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/two-nodes");

fn main() -> ExitCode {
    match std::env::var(ROLE) {
        Ok(role) if std::env::var(THREADS).is_ok() => unisono::run_threads(RANKS, |comm| play(&role, comm)),
        Ok(role) if std::env::var(IN_GROUP).is_ok() => unisono::run(|comm| {
            let mut group = comm.group(&[2, 1, 0])?.expect("all are in it");
            // The group would be gone before the world hears of it.
            play(&role, &mut group).inspect_err(|error| group.fail(&error.to_string()))
        }),
        Ok(role) => unisono::run(|comm| play(&role, comm)),
        Err(_) => libtest_mimic::run(&arguments(), trials()).exit_code(),
    }
}

/// One test at a time: each has more ranks than there are cores.
fn arguments() -> Arguments {
    Arguments { test_threads: Some(1), ..Arguments::from_args() }
}

type Failure = Box<dyn std::error::Error>;

/// What a rank does: some all-reduces with the others, and then rank 1 something else.
fn play(role: &str, comm: &mut Communicator) -> Result<(), Failure> {
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
            // What is said must not wait for the end.
            std::thread::sleep(Duration::from_secs(20));
        }
        ("killed" | "killed beside one that computes", 1) => kill("-KILL"),
        ("killed by SIGTERM", 1) => kill("-TERM"),
        ("asked", 1) => ask(),
        ("killed beside one that computes", 2) => compute(),
        ("leaves", 1) => return Ok(()),
        ("cut", 0) => cut_the_link(),
        ("late", 1) => std::thread::sleep(Duration::from_millis(1500)),
        ("out of memory", rank) => {
            array = vec![1.0; 32 << 20];
            if rank == 1 {
                limit_memory();
            }
        }
        ("out of memory in groups", rank) => {
            if rank == 1 {
                limit_memory();
            }
            let mut groups = Vec::new();
            loop {
                groups.push(comm.group(&[0, 1, 2])?);
            }
        }
        ("closes its files", 1) => close_files(),
        _ => {}
    }
    match role {
        "late" | "asked" | "closes its files" => drop(comm.all_reduce(&mut array, ReduceOp::Max)?),
        _ => loop {
            comm.all_reduce(&mut array, ReduceOp::Max)?;
        },
    }
    Ok(())
}

/// Lets the script know that all ranks are at work.
fn cut_the_link() {
    let cut_when = std::env::var("UNISONO_TEST_CUT").expect("the runner names a file");
    std::fs::write(cut_when, "").expect("the file is written");
}

/// By SIGKILL as a crash does it: nothing of this process runs any more.
fn kill(signal: &str) {
    signal_this_process(signal);
    std::thread::sleep(DEADLINE);
}

/// Leaves this process little more memory than it has.
fn limit_memory() {
    let sizes = std::fs::read_to_string("/proc/self/statm").expect("a process has sizes");
    let pages: u64 = sizes.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number of pages");
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::As);
    limit.current = Some(pages * rustix::param::page_size() as u64 + (16 << 20));
    rustix::process::setrlimit(rustix::process::Resource::As, limit).expect("a limit is set");
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

/// How ranks come to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    Threads,
    /// Processes that no MPI has launched.
    Processes,
    /// A group of such processes.
    Group,
    /// Such processes that share no memory, as if they were on several machines.
    Connections,
    SharedMemory,
    Messages,
}

fn start(world: World, role: &str, settings: &[(&str, &str)]) -> (Ended, Duration) {
    let program = std::env::current_exe().expect("a program knows its path");
    let mut command = match world {
        World::Threads => Command::new(program),
        World::Processes | World::Group | World::Connections => {
            launch::processes(RANKS, program.to_str().expect("a path in UTF-8"))
        }
        _ => launch::mpirun(RANKS, program.to_str().expect("a path in UTF-8")),
    };
    match world {
        World::Threads => command.env(THREADS, ""),
        World::Group => command.env(IN_GROUP, ""),
        World::Processes | World::SharedMemory => &mut command,
        World::Connections => command.envs([("UNISONO_NETWORK", "tcp"), ("UNISONO_NODES", "1,1,1")]),
        World::Messages => command.env("UNISONO_TRANSPORT", "mpi"),
    };
    // What is odd about the launch would come before the first cause.
    command.env(ROLE, role).env("UNISONO_WARNINGS", "off").envs(settings.iter().copied());
    let started = Instant::now();
    let ended = launch::run(command, DEADLINE);
    (ended, started.elapsed())
}

/// The port after which the ranks of a test's containers meet.
const PORT: u16 = 29_873;

/// A rank without MPI is killed on what is another machine to the others.
fn killed_in_a_container() {
    let program = std::env::current_exe().expect("a program knows its path");
    let mut command = match launch::containers(RANKS, program.to_str().expect("a path in UTF-8"), PORT) {
        Ok(command) => command,
        Err(why) => return eprintln!("skipped, since there can be no containers here: {why}"),
    };
    command.env(ROLE, "killed beside one that computes").env("UNISONO_WARNINGS", "off");
    let started = Instant::now();
    let ended = launch::run(command, DEADLINE);
    let told = format!("{} after {:?}\n{}\n{}", ended.status, started.elapsed(), ended.stdout, ended.stderr);
    assert!(!ended.status.success() && started.elapsed() < END, "{told}");
    assert_killed_elsewhere(&ended.stderr, &told);
}

/// Rank 1 is named first, and the others say that they end because of it.
fn assert_killed_elsewhere(stderr: &str, told: &str) {
    let first = stderr.lines().find(|line| line.starts_with("unisono: ")).unwrap_or_default();
    assert!(first.starts_with("unisono: rank 1 (host ") && first.contains("has died"), "{told}");
    for rank in [0, 2] {
        let says = format!("unisono: rank {rank}: aborted because rank 1 failed: its process was killed");
        assert!(!launch::is_open_mpi() || stderr.contains(&says), "rank {rank}: {told}");
    }
}

/// Why there cannot be two nodes here, if there cannot.
fn no_nodes() -> Option<String> {
    if !launch::is_open_mpi() {
        return Some("tools/two-nodes gives a launcher a network of its own for Open MPI alone".to_owned());
    }
    let check = Command::new(TWO_NODES).arg("--check").output().expect("the script starts");
    (!check.status.success()).then(|| String::from_utf8_lossy(&check.stderr).trim().to_owned())
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let no_nodes = no_nodes();
    let mut trial = |name: String, test: Box<dyn FnOnce() + Send>| {
        let needs_nodes = name.contains("link") || name.contains("node");
        let why = no_nodes.as_ref().filter(|_| needs_nodes);
        let name = why.map_or(name.clone(), |why| format!("{name} ({why})"));
        let test = move || {
            test();
            Ok(())
        };
        trials.push(Trial::test(name, test).with_ignored_flag(why.is_some()));
    };
    for world in [World::Threads, World::Processes, World::Connections, World::SharedMemory, World::Messages]
    {
        for (role, cause) in [
            ("panic", "panicked"),
            ("error", "the disk of this rank is full"),
            ("fail", "it does not like the data"),
            ("leaves", "rank 1 has left the world"),
        ] {
            trial(format!("{role}, over {world:?}"), Box::new(move || fails(world, role, cause)));
        }
        trial(format!("a rank that is late, over {world:?}"), Box::new(move || late(world)));
        trial(format!("a rank that is asked what it did, over {world:?}"), Box::new(move || asked(world)));
    }
    for (role, cause) in [
        ("panic", "panicked"),
        ("error", "the disk of this rank is full"),
        ("fail", "it does not like the data"),
        ("killed", "its process was killed"),
        ("killed beside one that computes", "its process was killed"),
    ] {
        trial(format!("{role}, over {:?}", World::Group), Box::new(move || fails(World::Group, role, cause)));
    }
    for world in [World::Processes, World::Group, World::Connections] {
        for role in ["out of memory", "out of memory in groups"] {
            let test = move || fails(world, role, "cannot allocate or share");
            trial(format!("{role}, over {world:?}"), Box::new(test));
        }
    }
    for world in [World::Processes, World::Group] {
        let test = move || drop(start(world, "closes its files", &[]).0.expect_success());
        trial(format!("a rank that closes its files, over {world:?}"), Box::new(test));
    }
    for (name, test) in [
        ("a link that is cut", cut as fn()),
        ("killed, on another node", killed_elsewhere),
        ("killed, in a container", killed_in_a_container),
    ] {
        trial(name.to_owned(), Box::new(test));
    }
    for world in [World::Processes, World::Connections, World::SharedMemory, World::Messages] {
        for (role, cause) in [
            ("killed", "its process was killed"),
            ("killed by SIGTERM", "it was ended by SIGTERM"),
            ("killed beside one that computes", "its process was killed"),
        ] {
            let test = move || fails(world, role, cause);
            trial(format!("{role}, over {world:?}"), Box::new(test));
        }
    }
    trials
}

/// All ranks end, the first line that we say is the cause, the others say that they end because of it, and nothing is left.
fn fails(world: World, role: &str, cause: &str) {
    let files = left::shared_files();
    // Copies that need memory.
    let settings = [("UNISONO_KERNEL_COPIES", "off")];
    let settings = if role == "out of memory" { &settings[..] } else { &[] };
    let (Ended { status, stdout, stderr }, took) = start(world, role, settings);
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
        // That a rank has left, both others may see at the same moment.
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

/// A cable is pulled in the middle of all-reduces: the ranks of both nodes end, and name the link.
fn cut() {
    let cut_when = std::env::temp_dir().join(format!("unisono-cut-{}", std::process::id()));
    let (ranks, control) = (["--ranks", "2,1"], "--control");
    let mut command =
        over_nodes(&[&ranks[..], &[control, "--cut-when", cut_when.to_str().unwrap()]].concat());
    command.env(ROLE, "cut").env("UNISONO_TEST_CUT", &cut_when);
    let ended = launch::run(command, DEADLINE + DEADLINE);
    std::fs::remove_file(&cut_when).expect("rank 0 has asked for the cut");
    let told = format!("{}\n{}", ended.stdout, ended.stderr);
    assert!(!ended.status.success(), "{told}");
    let said: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("unisono: rank ")).collect();
    let named = |line: &&&str| {
        line.contains("the link between host node1 (rank 0) and host node2 (rank 2) over 10.77.0.1 is cut")
            || line.contains(
                "the link between host node2 (rank 2) and host node1 (rank 0) over 10.77.0.1 is cut",
            )
    };
    assert!(said.first().is_some_and(|line| line.contains("(host ") && named(&line)), "{told}");
    for rank in 0..RANKS {
        let of_rank = |line: &&&&str| line.starts_with(&format!("unisono: rank {rank}"));
        assert!(said.iter().filter(named).any(|line| of_rank(&&line)), "rank {rank}: {told}");
    }
}

fn killed_elsewhere() {
    let mut command = over_nodes(&["--ranks", "1,2", "--control"]);
    command.env(ROLE, "killed beside one that computes");
    let started = Instant::now();
    let ended = launch::run(command, DEADLINE);
    let told = format!("{} after {:?}\n{}\n{}", ended.status, started.elapsed(), ended.stdout, ended.stderr);
    assert!(!ended.status.success(), "{told}");
    assert!(ended.stderr.contains("unisono: rank 1 (host node2, pid "), "{told}");
    assert_killed_elsewhere(&ended.stderr, &told);
}

fn over_nodes(options: &[&str]) -> Command {
    let mut command = Command::new(TWO_NODES);
    command.env("UNISONO_WARNINGS", "off").args(options).args(["--mpirun", &launch::launcher(), "--"]);
    command.arg(std::env::current_exe().expect("a program knows its path"));
    command
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
