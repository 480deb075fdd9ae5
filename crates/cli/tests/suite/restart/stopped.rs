//! Runs that are stopped by a signal to their supervisor, by a signal to one rank, or by Slurm.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::watch::{Guarded, kill, last_event, newest, ranks, supervise, until};
use crate::{UNISONO, digits};
use unisono_testing::launch::{self, is_open_mpi, mpirun};
use unisono_testing::shared;

const MINUTE: Duration = Duration::from_secs(60);
/// The exit code of a run that was stopped on request.
const STOPPED: Option<i32> = Some(75);

/// Returns a run that is long enough to be stopped.
fn train(directory: &Path, more: &[&str]) -> Command {
    let mut command = mpirun(2, UNISONO);
    command.args(["train", "--format", "json", "--data", digits(), "--epochs", "24", "--global-batch", "64"]);
    command
        .args(["--hidden", "64", "--checkpoint-dir", directory.to_str().unwrap(), "--checkpoint-every", "25"])
        .args(more);
    command
}

/// Returns the result of an uninterrupted run.
fn undisturbed() -> serde_json::Value {
    let run = || {
        let directory = tempfile::tempdir().unwrap();
        launch::run(train(directory.path(), &[]), 5 * MINUTE).expect_success().stdout
    };
    last_event(&shared::text("undisturbed run", run), "done")
}

/// Starts a command, calls `disturb` after its first checkpoint, and returns its exit code and output.
fn disturbed(mut command: Command, directory: &Path, disturb: impl FnOnce(u32)) -> (Option<i32>, String) {
    let output = directory.join("output");
    command.stdin(Stdio::null()).stdout(File::create(&output).unwrap()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    until("a checkpoint", MINUTE, || newest(directory).map(drop));
    disturb(run.0.id());
    let status = run.ended(MINUTE);
    (status.code(), fs::read_to_string(output).unwrap())
}

/// Asserts that a stopped run is saved where its report states, and that the resumed run gives the result of an uninterrupted one.
fn assert_goes_on(directory: &Path, output: &str) {
    let stopped = last_event(output, "stopped");
    assert_eq!(stopped["stopped"]["is_saved"], true, "{output}");
    let step = stopped["stopped"]["step"].as_u64().unwrap();
    assert_eq!(newest(directory), Some(format!("step-{step:010}")), "{output}");
    let resumed = launch::run(train(directory, &["--resume"]), 5 * MINUTE).expect_success();
    let (resumed, undisturbed) = (last_event(&resumed.stdout, "done"), undisturbed());
    for figure in ["parameters_hash", "loss", "test_loss"] {
        assert_eq!(resumed[figure], undisturbed[figure], "{figure}");
    }
}

pub(crate) fn signal_to_supervise_saves_a_run_that_resumes_with_the_same_result() {
    let directory = tempfile::tempdir().unwrap();
    let command = supervise(&["--grace-s", "30"], &train(directory.path(), &[]));
    let (code, output) = disturbed(command, directory.path(), |supervisor| kill("TERM", supervisor));
    assert_eq!(code, STOPPED, "{output}");
    assert_goes_on(directory.path(), &output);
}

pub(crate) fn signal_to_one_rank_stops_all_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let (code, output) = disturbed(train(directory.path(), &[]), directory.path(), |launcher| {
        let ranks = ranks(launcher);
        assert_eq!(ranks.len(), 2);
        kill("USR1", ranks[1]);
    });
    // Open MPI returns the exit code of the first rank, and MPICH combines the codes of all ranks.
    assert_eq!(code, STOPPED, "Open MPI: {}; {output}", is_open_mpi());
    assert_goes_on(directory.path(), &output);
}

/// Uses an `scontrol` that only records its arguments, with this machine's launcher and command first on the path.
pub(crate) fn slurm_script_requeues_the_job() {
    let directory = tempfile::tempdir().unwrap();
    let (tools, checkpoints) = (directory.path().join("tools"), directory.path().join("checkpoints"));
    fs::create_dir(&tools).unwrap();
    let tool = |name: &str, script: &str| {
        let path = tools.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
    };
    let notes = directory.path().join("notes");
    tool("scontrol", &format!("echo \"$@\" >> {}", notes.display()));
    tool("unisono", &format!("exec {UNISONO} \"$@\""));
    let launcher = mpirun(2, "unisono");
    let words: Vec<_> = launcher.get_args().map(|word| word.to_str().unwrap()).collect();
    let (program, options) = (launcher.get_program().to_str().unwrap(), &words[..words.len() - 1]);
    let real = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    let real = String::from_utf8(real.stdout).unwrap();
    tool("mpirun", &format!("exec {} {} \"$@\"", real.trim(), options.join(" ")));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm/train.sbatch");
    let mut command = Command::new("bash");
    command.arg(script).args(["--format", "json", "--epochs", "400", "--checkpoint-every", "25"]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", tools.display())).env("SLURM_JOB_ID", "4711");
    command.env("CHECKPOINTS", &checkpoints).env("DATA", digits());
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    fs::create_dir(&checkpoints).unwrap();
    let (code, output) = disturbed(command, &checkpoints, |script| kill("USR1", script));
    assert_eq!(code, STOPPED, "{output}");
    assert_eq!(fs::read_to_string(notes).unwrap(), "requeue 4711\n");
    assert!(output.contains(r#""event":"stopped""#) && output.contains(r#""is_saved":true"#), "{output}");
}
