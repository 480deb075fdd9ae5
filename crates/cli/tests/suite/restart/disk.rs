//! A full disk: a small in-memory file system in its own mount namespace, invisible to other processes.

use std::process::Command;
use std::time::Duration;

use crate::{UNISONO, digits};
use unisono_testing::launch::{self, mpirun};

/// Mounts a disk at `$1` with `$2` bytes, then runs the remaining arguments.
const MOUNT: &str = "mount -t tmpfs -o size=$2 tmpfs $1 && shift 2 && \"$@\"";

fn namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
    command
}

/// Returns the reason why no such disk can be mounted here, if there is one.
pub(crate) fn unavailable() -> Option<String> {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    match namespace(MOUNT).arg(directory.path()).args(["1m", "true"]).output() {
        Err(error) => Some(format!("unshare does not start: {error}")),
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(said.lines().next().unwrap_or("no mount in a namespace").trim().to_owned())
        }
        Ok(_) => None,
    }
}

pub(crate) fn full() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let mut train = mpirun(2, UNISONO);
    // A checkpoint has 1.9 MB: parameters and the state of SGD. There is space for two, but not for a third.
    train.args(["train", "--format", "json", "--data", digits(), "--epochs", "30", "--global-batch", "64"]);
    train.args(["--checkpoint-dir", place, "--checkpoint-every", "40", "--keep", "3"]);
    let mut command = namespace(&format!("{MOUNT}; echo code $?; ls -A {place}"));
    command.arg(place).arg("5m").arg(train.get_program()).args(train.get_args());
    command.envs(train.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = launch::run(command, Duration::from_secs(120));
    let (stdout, stderr) = (&ended.stdout, &ended.stderr);
    assert!(stdout.lines().any(|line| line == "code 1"), "{stdout}\n{stderr}");
    let said = stderr.lines().find(|line| line.contains("cannot save the run"));
    let said = said.unwrap_or_else(|| panic!("it does not say why it ends: {stderr}"));
    for part in [
        "rank 0 cannot save the run: cannot write",
        ".safetensors",
        "No space left on device",
        "older checkpoints are untouched",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    // The run ends immediately, and not at its last step.
    assert!(!stdout.contains(r#""epoch":6"#), "it went on: {stdout}");
    let names: Vec<_> = stdout.lines().skip_while(|line| *line != "code 1").skip(1).collect();
    assert_eq!(names, [".lock", "step-0000000040", "step-0000000080"], "only whole ones: {stdout}");
}
