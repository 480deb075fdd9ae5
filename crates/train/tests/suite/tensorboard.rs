//! TensorBoard's own package reads the event files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use unisono_testing::launch;
use unisono_testing::suite::Test;
use unisono_testing::tests;
use unisono_train::tensorboard::EventFile;

pub(crate) fn tests() -> Vec<Test> {
    let missing = || {
        let reason = "no Python with the package tensorboard: `scripts/setup --tests` installs it";
        PYTHON.is_none().then(|| reason.to_owned())
    };
    let tests = tests![
        tensorboard_reads_tags_steps_and_values,
        tensorboard_discards_the_steps_that_a_resumed_run_repeats
    ];
    tests.into_iter().map(|test| test.unless(missing)).collect()
}

/// The time limit for TensorBoard, which compiles Python files on its first start.
const DEADLINE: Duration = Duration::from_secs(120);

static PYTHON: LazyLock<Option<PathBuf>> = LazyLock::new(python_with_tensorboard);

/// Returns the interpreter that `scripts/setup` installs or, if that is missing, the system's, provided that it has the package.
fn python_with_tensorboard() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    let python = if ours.exists() { ours } else { PathBuf::from("python3") };
    // A missing program is not an error here.
    Command::new(&python).arg("--version").output().ok()?;
    let mut command = Command::new(&python);
    command.args(["-c", "import tensorboard.backend.event_processing.event_accumulator"]);
    launch::run(command, DEADLINE).status.success().then_some(python)
}

/// Prints `{tag: [[step, value], …]}`, with `nan` as a string, because JSON has no such number.
const READ: &str = "
import json, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
curves = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
curves.Reload()
value = lambda value: 'nan' if math.isnan(value) else value
print(json.dumps({tag: [[point.step, value(point.value)] for point in curves.Scalars(tag)]
                  for tag in curves.Tags()['scalars']}))
";

/// Returns the curves that TensorBoard reads from a directory.
fn read(directory: &Path) -> Value {
    let mut command = Command::new(PYTHON.as_ref().expect("the tests are ignored without it"));
    command.args(["-c", READ]).arg(directory);
    let ended = launch::run(command, DEADLINE).expect_success();
    serde_json::from_str(&ended.stdout).expect("the program prints JSON")
}

fn tensorboard_reads_tags_steps_and_values() {
    let directory = tempfile::tempdir().unwrap();
    let mut events = EventFile::create(directory.path()).unwrap();
    for step in 0..2000_u64 {
        events.scalars(step, &[("loss/train", 0.5 * step as f64)]).unwrap();
    }
    events.scalars(1 << 40, &[("loss/test, größer", 0.0), ("rate", -1e-3), ("diverged", f64::NAN)]).unwrap();
    events.flush().unwrap();
    // Flushed points are visible while the run continues.
    let found = read(directory.path());
    drop(events);

    let train: Vec<_> = (0..2000).map(|step| json!([step, 0.5 * f64::from(step)])).collect();
    let step = 1_u64 << 40;
    let expected = json!({
        "loss/train": train,
        "loss/test, größer": [[step, 0.0]],
        "rate": [[step, f64::from(-1e-3_f32)]],
        "diverged": [[step, "nan"]],
    });
    assert_eq!(found, expected);
}

fn tensorboard_discards_the_steps_that_a_resumed_run_repeats() {
    let directory = tempfile::tempdir().unwrap();
    let mut events = EventFile::create(directory.path()).unwrap();
    for step in 1..=5 {
        events.scalars(step, &[("loss", 1.0)]).unwrap();
    }
    drop(events);
    let mut events = EventFile::create(directory.path()).unwrap();
    events.resume(4).unwrap();
    for step in 4..=6 {
        events.scalars(step, &[("loss", 2.0)]).unwrap();
    }
    drop(events);
    let expected = json!({ "loss": [[1, 1.0], [2, 1.0], [3, 1.0], [4, 2.0], [5, 2.0], [6, 2.0]] });
    assert_eq!(read(directory.path()), expected);
}
