//! Workers of a parameter server that are killed and join again.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::killed::kills;
use crate::watch::{Guarded, descendants, kill, last_event, ranks, until};
use crate::{UNISONO, count, digits};
use unisono_testing::random::Random;

const MINUTE: Duration = Duration::from_secs(60);
/// The number of ranks, one of which serves.
const RANKS: usize = 4;

/// Returns a variable in the environment of a process.
fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables = environment.split(|&byte| byte == 0);
    let mut values = variables.filter_map(|variable| {
        std::str::from_utf8(variable).ok()?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned)
    });
    values.next_back()
}

/// Returns the rank of a process from its launcher's variable.
fn rank_of(pid: u32) -> Option<usize> {
    variable(pid, "RANK")?.parse().ok()
}

/// Returns what a run has written so far to a file in its directory: `output`, or `said` for its errors.
fn text(directory: &Path, file: &str) -> String {
    fs::read_to_string(directory.join(file)).unwrap()
}

/// Starts an elastic run with these arguments of `launch` and of `train`, and waits for its first epoch.
fn started(directory: &Path, launch: &[&str], train: &[&str]) -> Guarded {
    let mut command = Command::new(UNISONO);
    command.args(["launch", "--elastic"]).args(launch).args(["--", UNISONO, "train", "--data", digits()]);
    command.args(["--hidden", "64", "--strategy", "parameter-server", "--elastic", "--format", "json"]);
    let file = |name: &str| File::create(directory.join(name)).unwrap();
    command.args(train).stdin(Stdio::null()).stdout(file("output")).stderr(file("said"));
    let run = Guarded(command.spawn().unwrap());
    until("an epoch", MINUTE, || text(directory, "output").contains("\"event\":\"epoch\"").then_some(()));
    run
}

/// Kills workers while the others continue, and waits each time for the replacement to join.
pub(crate) fn workers_join_again_after_being_killed() {
    let kills = kills();
    let (epochs, restarts) = ((24 + 18 * kills).to_string(), kills.to_string());
    let directory = tempfile::tempdir().unwrap();
    let train = ["--staleness", "8", "--epochs", &epochs, "--global-batch", "192"];
    let mut run = started(directory.path(), &["--max-restarts", &restarts, "-n", &RANKS.to_string()], &train);
    let root = run.0.id();
    let joined = || count(&text(directory.path(), "said"), "has joined on rank");
    let mut random = Random::new(5);
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(100_000) as u64));
        assert!(run.0.try_wait().unwrap().is_none(), "the run ended before kill {round}");
        let workers: Vec<_> = ranks(root).into_iter().filter(|&pid| rank_of(pid) > Some(0)).collect();
        assert_eq!(workers.len(), RANKS - 1, "{:?}", descendants(root));
        kill("KILL", random.one_of(&workers));
        until("a worker joins", MINUTE, || (joined() > round).then_some(()));
    }
    let status = run.ended(10 * MINUTE);
    let [output, said] = ["output", "said"].map(|file| text(directory.path(), file));
    assert!(status.success(), "{status}\n{output}\n{said}");
    assert_eq!(count(&said, "restarting it"), kills, "{said}");
    assert_eq!(count(&said, "others do its share"), kills, "{said}");
    let end = last_event(&output, "done");
    assert!(end["test_accuracy"].as_f64().unwrap() > 0.8, "{end}");
    println!(
        "counted: elastic: {kills} workers killed; {:.2} % in the end",
        100.0 * end["test_accuracy"].as_f64().unwrap()
    );
}

/// Without a remaining restart, the other workers continue. Without any worker, the run ends with an error.
pub(crate) fn lost_workers_do_not_block_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let train = ["--staleness", "unbounded", "--epochs", "40"];
    let mut run = started(directory.path(), &["--max-restarts", "0", "-n", "3"], &train);
    let worker = ranks(run.0.id()).into_iter().find(|&pid| rank_of(pid) == Some(2)).unwrap();
    kill("KILL", worker);
    let status = run.ended(5 * MINUTE);
    let said = text(directory.path(), "said");
    assert!(status.success() && said.contains("1 of 2 workers are left"), "{status}\n{said}");
    assert!(said.contains("the others continue without it"), "{said}");
}

/// A killed server ends the run, even if the launcher may restart ranks.
pub(crate) fn lost_parameter_server_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = started(directory.path(), &["-n", "4"], &["--servers", "2", "--epochs", "600"]);
    let server = ranks(run.0.id()).into_iter().find(|&pid| rank_of(pid) == Some(1)).unwrap();
    kill("KILL", server);
    let status = run.ended(MINUTE);
    let said = text(directory.path(), "said");
    assert!(!status.success(), "{said}");
    assert!(said.contains("the parameter server on rank 1 is lost"), "{said}");
}
