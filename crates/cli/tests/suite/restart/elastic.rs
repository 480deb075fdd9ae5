//! Workers of a parameter server that are killed and join again.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::killed::kills;
use crate::watch::{Guarded, descendants, kill, last_event, ranks, until};
use crate::{UNISONO, digits};
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

fn count(file: &Path, what: &str) -> usize {
    fs::read_to_string(file).unwrap().matches(what).count()
}

/// Kills workers while the others continue, and waits each time for the replacement to join.
pub(crate) fn workers_join_again_after_being_killed() {
    let kills = kills();
    let (epochs, restarts) = ((24 + 18 * kills).to_string(), kills.to_string());
    let directory = tempfile::tempdir().unwrap();
    let (output, said) = (directory.path().join("output"), directory.path().join("said"));
    let mut command = Command::new(UNISONO);
    command.args([
        "launch",
        "--elastic",
        "--max-restarts",
        &restarts,
        "-n",
        &RANKS.to_string(),
        "--",
        UNISONO,
    ]);
    command.args([
        "train",
        "--strategy",
        "parameter-server",
        "--staleness",
        "8",
        "--elastic",
        "--format",
        "json",
    ]);
    command.args(["--data", digits(), "--epochs", &epochs, "--global-batch", "192", "--hidden", "64"]);
    command.stdin(Stdio::null());
    command.stdout(File::create(&output).unwrap()).stderr(File::create(&said).unwrap());
    let mut run = Guarded(command.spawn().unwrap());
    let root = run.0.id();
    until("an epoch", MINUTE, || (count(&output, "\"event\":\"epoch\"") > 0).then_some(()));
    let mut random = Random::new(5);
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(100_000) as u64));
        assert!(run.0.try_wait().unwrap().is_none(), "the run ended before kill {round}");
        let workers: Vec<_> = ranks(root).into_iter().filter(|&pid| rank_of(pid) > Some(0)).collect();
        assert_eq!(workers.len(), RANKS - 1, "{:?}", descendants(root));
        kill("KILL", random.one_of(&workers));
        until("a worker joins", MINUTE, || (count(&said, "has joined on rank") > round).then_some(()));
    }
    let status = run.ended(10 * MINUTE);
    let (output, said) = (fs::read_to_string(output).unwrap(), fs::read_to_string(said).unwrap());
    assert!(status.success(), "{status}\n{output}\n{said}");
    assert_eq!(said.matches("restarting it").count(), kills, "{said}");
    assert_eq!(said.matches("others do its share").count(), kills, "{said}");
    let end = last_event(&output, "done");
    assert!(end["test_accuracy"].as_f64().unwrap() > 0.8, "{end}");
    println!(
        "counted: elastic: {kills} workers killed; {:.2} % in the end",
        100.0 * end["test_accuracy"].as_f64().unwrap()
    );
}

/// Without a remaining restart, the other workers continue. Without any worker, the run ends with an error.
pub(crate) fn lost_workers_do_not_block_the_others() {
    let train =
        ["--strategy", "parameter-server", "--staleness", "unbounded", "--elastic", "--format", "json"];
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    let output = directory.path().join("output");
    let mut command = Command::new(UNISONO);
    command.args([
        "launch",
        "--elastic",
        "--max-restarts",
        "0",
        "-n",
        "3",
        "--",
        UNISONO,
        "train",
        "--data",
        digits(),
        "--epochs",
        "40",
        "--hidden",
        "64",
    ]);
    command.args(train).stdin(Stdio::null());
    command.stdout(File::create(&output).unwrap()).stderr(File::create(&said).unwrap());
    let mut run = Guarded(command.spawn().unwrap());
    until("an epoch", MINUTE, || (count(&output, "\"event\":\"epoch\"") > 0).then_some(()));
    let worker = ranks(run.0.id()).into_iter().find(|&pid| rank_of(pid) == Some(2)).unwrap();
    kill("KILL", worker);
    let status = run.ended(5 * MINUTE);
    let said = fs::read_to_string(said).unwrap();
    assert!(status.success() && said.contains("1 of 2 workers are left"), "{status}\n{said}");
    assert!(said.contains("the others continue without it"), "{said}");
}

/// A killed server ends the run, even if the launcher may restart ranks.
pub(crate) fn lost_parameter_server_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let mut command = Command::new(UNISONO);
    command.args([
        "launch",
        "--elastic",
        "-n",
        "4",
        "--",
        UNISONO,
        "train",
        "--data",
        digits(),
        "--epochs",
        "600",
        "--hidden",
        "64",
        "--format",
        "json",
    ]);
    command.args(["--strategy", "parameter-server", "--servers", "2", "--elastic"]).stdin(Stdio::null());
    let said = directory.path().join("said");
    command.stdout(File::create(&output).unwrap()).stderr(File::create(&said).unwrap());
    let mut run = Guarded(command.spawn().unwrap());
    until("an epoch", MINUTE, || (count(&output, "\"event\":\"epoch\"") > 0).then_some(()));
    let server = ranks(run.0.id()).into_iter().find(|&pid| rank_of(pid) == Some(1)).unwrap();
    kill("KILL", server);
    let status = run.ended(MINUTE);
    let said = fs::read_to_string(said).unwrap();
    assert!(!status.success(), "{said}");
    assert!(said.contains("the parameter server on rank 1 is lost"), "{said}");
}
