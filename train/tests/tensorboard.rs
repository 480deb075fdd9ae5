//! TensorBoard's own package reads the files that we write.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::{Value, json};
use unisono_train::tensorboard::EventFile;

use unisono_testing::launch;

fn main() -> ExitCode {
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |name: &str, test: fn(&Path)| {
        Trial::ignorable_test(name, move || -> Result<Completion, Failed> {
            let Some(python) = python_with_tensorboard() else {
                let reason = "no Python with the package tensorboard: `scripts/setup --tests` installs it";
                return Ok(Completion::ignored_with(reason));
            };
            test(&python);
            Ok(Completion::Completed)
        })
    };
    let trials = vec![
        trial("TensorBoard reads tags, steps and values", curves),
        trial("TensorBoard forgets the steps that a resumed run makes again", resumed),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The time limit for TensorBoard, which compiles itself on its first start.
const DEADLINE: Duration = Duration::from_secs(120);

/// The interpreter that `scripts/setup` installs, or else the system's, if it has the package.
fn python_with_tensorboard() -> Option<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/python/bin/python");
    let python = if ours.exists() { ours } else { PathBuf::from("python3") };
    // A missing program is no error here.
    Command::new(&python).arg("--version").output().ok()?;
    let mut command = Command::new(&python);
    command.args(["-c", "import tensorboard.backend.event_processing.event_accumulator"]);
    launch::run(command, DEADLINE).status.success().then_some(python)
}

/// Prints `{tag: [[step, value], …]}`; `nan` as a string, because JSON has no such number.
const READ: &str = "
import json, math, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
curves = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
curves.Reload()
value = lambda value: 'nan' if math.isnan(value) else value
print(json.dumps({tag: [[point.step, value(point.value)] for point in curves.Scalars(tag)]
                  for tag in curves.Tags()['scalars']}))
";

/// TensorBoard's view of a directory.
fn read(python: &Path, directory: &Path) -> Value {
    let mut command = Command::new(python);
    command.args(["-c", READ]).arg(directory);
    let ended = launch::run(command, DEADLINE).expect_success();
    serde_json::from_str(&ended.stdout).expect("the program prints JSON")
}

fn curves(python: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let mut events = EventFile::create(directory.path()).unwrap();
    for step in 0..2000_u64 {
        events.scalar("loss/train", step, 0.5 * step as f64).unwrap();
    }
    events.scalars(1 << 40, &[("loss/test, größer", 0.0), ("rate", -1e-3), ("diverged", f64::NAN)]).unwrap();
    events.flush().unwrap();
    // The run continues, but flushed points are visible.
    let found = read(python, directory.path());
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

fn resumed(python: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let mut events = EventFile::create(directory.path()).unwrap();
    for step in 1..=5 {
        events.scalar("loss", step, 1.0).unwrap();
    }
    drop(events);
    let mut events = EventFile::create(directory.path()).unwrap();
    events.resume(4).unwrap();
    for step in 4..=6 {
        events.scalar("loss", step, 2.0).unwrap();
    }
    drop(events);
    let expected = json!({ "loss": [[1, 1.0], [2, 1.0], [3, 1.0], [4, 2.0], [5, 2.0], [6, 2.0]] });
    assert_eq!(read(python, directory.path()), expected);
}
