//! Interrupts runs with Ctrl-C.

use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use super::*;
use crate::watch::{Guarded, kill, newest, until};
use unisono_testing::suite::Test;
use unisono_testing::tests;

const MINUTE: Duration = Duration::from_secs(60);

fn ctrl_c_saves_a_run_of_threads_and_exits_with_75() {
    interrupted(&["train", "--threads", "2"]);
}

fn ctrl_c_under_launch_saves_the_run_and_exits_with_75() {
    interrupted(&["launch", "-n", "2", "--", UNISONO, "train"]);
}

fn signal_ends_a_rank_that_waits_for_others_to_begin() {
    let folder = tempfile::tempdir().unwrap();
    let mut rank = begins("0", folder.path());
    kill("TERM", rank.0.id());
    assert_eq!(rank.ended(MINUTE / 2).code(), Some(75));
}

/// A retry may succeed, so the command is not called invalid.
fn loss_of_a_rank_before_all_begin_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let (mut rank, other) = (begins("0", folder.path()), begins("1", folder.path()));
    let files = format!("/proc/{}/fd", other.0.id());
    let is_socket = |file: fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    until("its connection", MINUTE, || fs::read_dir(&files).ok()?.flatten().any(is_socket).then_some(()));
    // Until it is admitted.
    std::thread::sleep(MINUTE / 60);
    kill("KILL", other.0.id());
    assert_eq!(rank.ended(MINUTE).code(), Some(1));
}

/// Starts a rank that waits for the last of three.
fn begins(rank: &str, folder: &Path) -> Guarded {
    let mut command = Command::new(UNISONO);
    command.args(["train", "--data", digits()]).stdin(Stdio::null()).stderr(Stdio::null());
    command.envs([("RANK", rank), ("WORLD_SIZE", "3")]).env("UNISONO_BOOTSTRAP_DIR", folder);
    let rank = Guarded(command.spawn().unwrap());
    // It handles signals before it looks for the others.
    until("its start", MINUTE, || names_in(folder).pop());
    rank
}

/// The data are a pipe that stays empty.
fn signal_ends_a_run_that_loads_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("table.csv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = Command::new(UNISONO);
    command.args(["train", "--data", &source(&pipe)]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    let open = || fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&pipe).ok();
    let _writer = until("its read", MINUTE, open);
    kill("TERM", run.0.id());
    assert_eq!(run.ended(MINUTE / 6).code(), Some(75));
}

/// Interrupts a run after its first checkpoint. The run must save its last step and exit with 75.
fn interrupted(train: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let (kept, said) = (directory.path().join("kept"), directory.path().join("said"));
    let mut command = Command::new(UNISONO);
    command.args(train).args([
        "--data",
        digits(),
        "--epochs",
        "1000",
        "--checkpoint-every",
        "5",
        "--format",
        "json",
    ]);
    command.arg("--checkpoint-dir").arg(&kept).stdin(Stdio::null());
    command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    until("a checkpoint", MINUTE, || newest(&kept));
    kill("INT", run.0.id());
    let status = run.ended(MINUTE);
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(status.code(), Some(75), "{said}");
    let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((&last["event"], &last["stopped"]["is_saved"]), (&"stopped".into(), &true.into()), "{last}");
    let newest = format!("step-{:010}", last["stopped"]["step"].as_u64().unwrap());
    assert_eq!(names_in(&kept).last(), Some(&newest));
}

/// The reader of the output ends after one line, as `head` does.
fn run_is_saved_when_its_reader_ends() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path().join("kept");
    let (reader, writer) = io::pipe().unwrap();
    let mut command = Command::new(UNISONO);
    command.args(["train", "--threads", "2", "--data", digits(), "--epochs", "1000"]);
    command.arg("--checkpoint-dir").arg(&kept).stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    drop(command);
    BufReader::new(reader).read_line(&mut String::new()).unwrap();
    assert_eq!(run.ended(MINUTE).code(), Some(75));
    assert!(newest(&kept).is_some());
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        ctrl_c_saves_a_run_of_threads_and_exits_with_75,
        ctrl_c_under_launch_saves_the_run_and_exits_with_75,
        signal_ends_a_rank_that_waits_for_others_to_begin,
        loss_of_a_rank_before_all_begin_is_a_failure,
        signal_ends_a_run_that_loads_its_data,
        run_is_saved_when_its_reader_ends
    ]
}
