//! Failures on another node, real or simulated.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};

use super::{DEADLINE, END, MOMENT, RANKS};

/// Makes two nodes of this machine.
const TWO_NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/two-nodes");
const WATCHDOG: &str = "UNISONO_WATCHDOG";

pub(super) fn tests() -> Vec<Test> {
    vec![
        Test::new("a link that is cut", cut).unless(no_nodes),
        Test::new("killed on another node", killed_elsewhere).unless(no_nodes),
        Test::new("killed in a container", killed_in_a_container).unless(launch::no_containers),
        Test::new("killed in a container without a watchdog", killed_without_a_watchdog)
            .unless(launch::no_containers),
    ]
}

/// A rank without MPI is killed in a container, which is another machine to the others.
fn killed_in_a_container() {
    let mut command = launch::containers(RANKS, &launch::this_program());
    suite::play(&mut command, "failures", "killed beside one that computes").env("UNISONO_WARNINGS", "off");
    let started = Instant::now();
    let ended = launch::run(command, DEADLINE);
    let report = format!("after {:?}: {ended}", started.elapsed());
    assert!(!ended.status.success() && started.elapsed() < END, "{report}");
    assert_killed_elsewhere(&ended.stderr, &report);
}

/// Checks that rank 1 is named first, and that the others report it as the cause of their end.
fn assert_killed_elsewhere(stderr: &str, report: &str) {
    let first = stderr.lines().find(|line| line.starts_with("unisono: ")).unwrap_or_default();
    assert!(first.starts_with("unisono: rank 1 (host ") && first.contains("has died"), "{report}");
    for rank in [0, 2] {
        let expected = format!("unisono: rank {rank}: aborted because rank 1 failed: its process was killed");
        assert!(!launch::is_open_mpi() || stderr.contains(&expected), "rank {rank}: {report}");
    }
}

/// Returns the reason why two nodes cannot be simulated here, if they cannot.
fn no_nodes() -> Option<String> {
    static OBSTACLE: LazyLock<Option<String>> = LazyLock::new(|| {
        if !launch::is_open_mpi() {
            let why = "scripts/two-nodes gives a launcher a network of its own for Open MPI alone";
            return Some(why.to_owned());
        }
        let check = Command::new(TWO_NODES).arg("--check").output().expect("the script starts");
        (!check.status.success()).then(|| String::from_utf8_lossy(&check.stderr).trim().to_owned())
    });
    OBSTACLE.clone()
}

/// Cuts a link during all-reduces. The ranks of both nodes must end, and name the link.
fn cut() {
    let folder = tempfile::tempdir().unwrap();
    let moment = folder.path().join("cut");
    let (ranks, control) = (["--ranks", "2,1"], "--control");
    let mut command = over_nodes(&[&ranks[..], &[control, "--cut-when", moment.to_str().unwrap()]].concat());
    suite::play(&mut command, "failures", "cut").env(MOMENT, &moment);
    let ended = run_to_a_soon_end(command, &moment);
    let report = ended.to_string();
    assert!(!ended.status.success(), "{report}");
    let lines: Vec<_> = ended.stderr.lines().filter(|line| line.starts_with("unisono: rank ")).collect();
    let named = |line: &&&str| {
        line.contains("the link between host node1 (rank 0) and host node2 (rank 2) over 10.77.0.1 is cut")
            || line.contains(
                "the link between host node2 (rank 2) and host node1 (rank 0) over 10.77.0.1 is cut",
            )
    };
    assert!(lines.first().is_some_and(|line| line.contains("(host ") && named(&line)), "{report}");
    for rank in 0..RANKS {
        let of_rank = |line: &&&&str| line.starts_with(&format!("unisono: rank {rank}"));
        assert!(lines.iter().filter(named).any(|line| of_rank(&&line)), "rank {rank}: {report}");
    }
}

fn killed_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let moment = folder.path().join("killed");
    let mut command = over_nodes(&["--ranks", "1,2", "--control"]);
    suite::play(&mut command, "failures", "killed beside one that computes").env(MOMENT, &moment);
    let ended = run_to_a_soon_end(command, &moment);
    let report = ended.to_string();
    assert!(!ended.status.success(), "{report}");
    assert!(ended.stderr.contains("unisono: rank 1 (host node2, pid "), "{report}");
    assert_killed_elsewhere(&ended.stderr, &report);
}

/// Runs a job over nodes, and checks that no rank is alive on any node ten seconds after a rank wrote this file. A launcher may
/// need longer to clean up.
fn run_to_a_soon_end(command: Command, moment: &Path) -> Ended {
    let mut last_seen = SystemTime::now();
    let ended = std::thread::scope(|scope| {
        let job = scope.spawn(|| launch::run(command, DEADLINE + DEADLINE));
        while !job.is_finished() {
            if is_a_rank_alive(moment) {
                last_seen = SystemTime::now();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        job.join().unwrap()
    });
    let failed = std::fs::metadata(moment).and_then(|file| file.modified());
    let failed = failed.unwrap_or_else(|error| panic!("no rank came to the failure: {error}: {ended}"));
    let lived = last_seen.duration_since(failed).expect("ranks live until one fails");
    assert!(lived < END, "ranks on some node have lived for {lived:?} after the failure: {ended}");
    ended
}

/// Returns whether a process of this program, in any namespaces, has this file in its environment.
fn is_a_rank_alive(moment: &Path) -> bool {
    let program = std::env::current_exe().expect("the program has a path");
    let setting = format!("{MOMENT}={}", moment.display());
    let processes = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    processes.map(|process| process.path()).any(|process| {
        std::fs::read_link(process.join("exe")).is_ok_and(|path| path == program)
            && std::fs::read(process.join("environ"))
                .is_ok_and(|all| all.split(|&byte| byte == 0).any(|one| one == setting.as_bytes()))
    })
}

/// Without the watchdog's connections, ranks on other nodes still detect a killed rank by their own connections with it.
fn killed_without_a_watchdog() {
    let run = |role: &str, watchdog: &str| {
        let mut command = launch::containers(RANKS, &launch::this_program());
        suite::play(&mut command, "failures", role).envs([("UNISONO_WARNINGS", "off"), (WATCHDOG, watchdog)]);
        let started = Instant::now();
        (launch::run(command, DEADLINE), started.elapsed())
    };
    let sockets = |watchdog| {
        let ended = run("sockets", watchdog).0.expect_success();
        let line = ended.stdout.lines().find_map(|line| line.strip_prefix("sockets: "));
        line.unwrap_or_else(|| panic!("{ended}")).parse::<usize>().unwrap()
    };
    let (with, without) = (sockets("auto"), sockets("off"));
    assert!(without < with, "{without} sockets of rank 0 with `{WATCHDOG}=off`, {with} otherwise");
    let (ended, took) = run("killed", "off");
    assert!(!ended.status.success() && took < END, "after {took:?}: {ended}");
    assert!(ended.stderr.contains("rank 1"), "{ended}");
}

fn over_nodes(options: &[&str]) -> Command {
    let mut command = Command::new(TWO_NODES);
    command.env("UNISONO_WARNINGS", "off").args(options).args(["--mpirun", &launch::launcher(), "--"]);
    command.arg(launch::this_program());
    command
}
