//! Tests `unisono supervise` with a failing command. Any command suffices, so the tests use a shell.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::watch::{Guarded, kill, supervise, until, words};
use unisono_testing::launch::{self, Ended};

const SOON: Duration = Duration::from_secs(30);

fn shell(script: &str, directory: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(directory);
    command
}

fn supervised(arguments: &[&str], script: &str, directory: &Path) -> Ended {
    let command = supervise(&[arguments, &["--wait-s", "0"]].concat(), &shell(script, directory));
    launch::run(command, Duration::from_secs(60))
}

fn lines(directory: &Path) -> usize {
    fs::read_to_string(directory.join("runs")).map_or(0, |text| text.lines().count())
}

pub(crate) fn supervise_gives_up_or_refuses_to_start() {
    for (script, restarts, code, said) in [
        ("echo x >> $1/runs; exit 3", "2", 3, "giving up after 2 restarts"),
        ("echo x >> $1/runs; kill -9 $$", "2", 137, "giving up after 2 restarts"),
        ("echo x >> $1/runs; exit 3", "0", 3, "giving up after 0 restarts"),
        ("echo x >> $1/runs; exit 2", "5", 2, "the command is invalid"),
        ("echo x >> $1/runs; exit 127", "5", 127, "cannot be run (exit code 127); not restarting"),
        ("echo x >> $1/runs; exit 75", "5", 75, "stopped on request"),
        ("echo x >> $1/runs; exit 0", "5", 0, ""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let ended = supervised(&["--max-restarts", restarts], script, directory.path());
        assert_eq!(ended.status.code(), Some(code), "{script}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{script}: {}", ended.stderr);
        assert!(ended.stderr.lines().all(|line| line.starts_with("supervise: ")), "{}", ended.stderr);
        let expected = if code == 3 || code == 137 { 1 + restarts.parse::<usize>().unwrap() } else { 1 };
        assert_eq!(lines(directory.path()), expected, "{script}");
    }
    let missing = supervise(&[], &Command::new("/there/is/no/such/command"));
    let ended = launch::run(missing, Duration::from_secs(60));
    assert_eq!(ended.status.code(), Some(127));
    assert!(ended.stderr.contains("cannot run `/there/is/no/such/command`"), "{}", ended.stderr);
}

/// Four runs that each save a new checkpoint and fail, then two that fail without saving.
pub(crate) fn supervise_resumes_and_counts_all_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo \"$@\" >> $2/runs; n=$(wc -l < $2/runs); \
                  if [ $n -le 4 ]; then mkdir $2/step-000000000$n; fi; exit 1";
    // In place of `unisono`, a shell runs the script `train`.
    fs::write(directory.path().join("train"), script).unwrap();
    symlink("/bin/sh", directory.path().join("unisono")).unwrap();
    let mut command = Command::new(directory.path().join("unisono"));
    command.args(["train", "--checkpoint-dir"]).arg(directory.path());
    let supervised = |arguments: &[&str]| {
        let mut supervise = supervise(arguments, &command);
        supervise.current_dir(directory.path());
        launch::run(supervise, Duration::from_secs(60))
    };
    let ended = supervised(&["--max-restarts", "5", "--wait-s", "0"]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert_eq!(lines(directory.path()), 6, "{}", ended.stderr);
    let runs = fs::read_to_string(directory.path().join("runs")).unwrap();
    let resumed: Vec<_> = runs.lines().map(|line| line.ends_with("--resume")).collect();
    assert_eq!(resumed, [false, true, true, true, true, true], "{runs}");
    assert!(ended.stderr.contains("from step-0000000004: restart 5 of 5"), "{}", ended.stderr);
    // These checkpoints now belong to an earlier run, and a restart must not resume from them.
    let ended = supervised(&[]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(ended.stderr.contains("contains step-0000000004"), "{}", ended.stderr);
}

/// The process has left the group and the session of its command, as a launcher's ranks do.
pub(crate) fn no_process_outlives_a_supervised_run() {
    let directory = tempfile::tempdir().unwrap();
    // Their output is discarded, so that remaining processes do not keep open a pipe for which this test would wait.
    let script = "exec >/dev/null 2>&1; setsid sleep 100 & echo $! >> $1/runs; \
                  setsid sh -c 'sleep 101 & wait' & sleep 0.1; exit 1";
    let ended = supervised(&["--max-restarts", "1"], script, directory.path());
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let pids = fs::read_to_string(directory.path().join("runs")).unwrap();
    assert_eq!(pids.lines().count(), 2, "{pids}");
    let started = pids.lines().map(|pid| pid.parse::<u32>().unwrap());
    let left: Vec<u32> = started.filter(|&pid| words(pid).contains(&"100".to_owned())).collect();
    for &pid in &left {
        kill("KILL", pid);
    }
    assert!(left.is_empty(), "{left:?} are still there");
    assert!(ended.stderr.contains("processes that the command left behind"), "{}", ended.stderr);
}

/// Starts `unisono supervise` with a command that writes down SIGUSR1 and SIGTERM, and ends with neither.
fn stubborn(grace_s: &str, directory: &Path) -> Guarded {
    let script = "trap 'echo usr1 >> $1/runs' USR1; trap 'echo term >> $1/runs' TERM; echo up >> $1/runs; \
                  while :; do sleep 0.05; done";
    let supervise = supervise(&["--grace-s", grace_s], &shell(script, directory));
    // The process that runs the tests may ignore the signal.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(supervise.get_program()).args(supervise.get_args());
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let run = Guarded(command.spawn().unwrap());
    until("the command is up", SOON, || (lines(directory) == 1).then_some(()));
    run
}

pub(crate) fn supervise_kills_commands_that_do_not_stop() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = stubborn("1", directory.path());
    let pid = run.0.id();
    // A closed terminal.
    kill("HUP", pid);
    until("it is asked to save", SOON, || (lines(directory.path()) == 2).then_some(()));
    until("it is told to end", SOON, || (lines(directory.path()) == 3).then_some(()));
    // A user who sends a second signal does not want to wait.
    kill("INT", pid);
    assert_eq!(run.ended(Duration::from_secs(5)).code(), Some(75));
    assert_eq!(fs::read_to_string(directory.path().join("runs")).unwrap(), "up\nusr1\nterm\n");
}

/// A closed terminal sends SIGHUP twice.
pub(crate) fn second_hangup_leaves_the_time_to_save() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = stubborn("600", directory.path());
    let pid = run.0.id();
    kill("HUP", pid);
    until("it is asked to save", SOON, || (lines(directory.path()) == 2).then_some(()));
    kill("HUP", pid);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(lines(directory.path()), 2, "it is told to end");
    kill("TERM", pid);
    until("it is told to end", SOON, || (lines(directory.path()) == 3).then_some(()));
    kill("INT", pid);
    assert_eq!(run.ended(SOON).code(), Some(75));
}
