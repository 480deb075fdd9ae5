//! Checkpoints of processes that are killed, or run out of disk space.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use unisono_testing::launch::this_program;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;
use unisono_train::checkpoint::{Checkpoint, Store, Tensor, load_newest};

const SAVE: &str = "save-in-a-loop";
const OUTGROW: &str = "outgrow-the-limit";
const OVERLAY: &str = "save-over-a-lower-layer";

pub(crate) fn tests() -> Vec<Test> {
    let overlay = Test::new(
        "checkpoints_of_a_lower_layer_are_replaced_and_deleted",
        checkpoints_of_a_lower_layer_are_replaced_and_deleted,
    );
    let mut all = tests![killed_process_leaves_complete_checkpoints, failed_write_keeps_older_checkpoints];
    all.push(overlay.unless(no_overlay));
    all
}

/// Runs a process that saves to the directory in its argument.
pub(crate) fn play(role: &str) -> ExitCode {
    let directory = std::env::args().nth(1).expect("a directory");
    let save = match role {
        SAVE => save_in_a_loop,
        OVERLAY => save_over_a_lower_layer,
        _ => outgrow_the_limit,
    };
    save(Path::new(&directory))
}

/// Returns a checkpoint whose values depend on the step.
fn checkpoint(step: u64, count: usize) -> Checkpoint<u64> {
    let tensor = |name: &str, sign: f32| Tensor {
        name: name.into(),
        shape: vec![count],
        values: vec![sign * step as f32; count],
    };
    Checkpoint {
        step,
        state: step * step,
        parameters: vec![tensor("weight", 1.0)],
        optimizer: vec![tensor("velocity", -1.0)],
    }
}

/// The number of values of a tensor, large enough for a save to take some time.
const COUNT: usize = 200_000;

/// Saves until killed, and prints the steps that are complete on disk.
fn save_in_a_loop(directory: &Path) -> ExitCode {
    let newest = load_newest::<u64>(directory).expect("the newest is whole");
    let first = newest.map_or(1, |newest| newest.checkpoint.step + 1);
    let mut store = Store::open(directory, 2).expect("whoever was here is gone");
    for step in first.. {
        // If a background save starts, the previous checkpoint is in place.
        if step % 2 == 0 {
            store.save_in_background(checkpoint(step, COUNT)).expect("there is room");
            println!("{}", step - 1);
        } else {
            store.save(checkpoint(step, COUNT)).expect("there is room");
            println!("{step}");
        }
    }
    ExitCode::SUCCESS
}

fn killed_process_leaves_complete_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut seed = 7_u64;
    let (mut newest_step, mut cut_short) = (0, 0);
    // The lock, two checkpoints, and one that a killed process did not delete.
    let mut most_names = 4;
    for round in 0..20 {
        let mut command = Command::new(this_program());
        suite::play(&mut command, "checkpoint", SAVE).arg(directory).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // After some saves, at any moment of the next one.
        let saves = 1 + (seed >> 33) as usize % 6;
        let begun = lines.by_ref().take(saves).map_while(Result::ok).last();
        let pause = std::time::Duration::from_micros((seed >> 40) % 8_000);
        std::thread::sleep(pause);
        child.kill().unwrap();
        child.wait().unwrap();
        cut_short += usize::from(names(directory).iter().any(|name| name.ends_with(".partial")));
        let safe = lines.map_while(Result::ok).last().or(begun);

        let loaded = load_newest::<u64>(directory).unwrap();
        let step = loaded.as_ref().map_or(0, |loaded| loaded.checkpoint.step);
        let promised = safe.map_or(0, |step| step.parse().unwrap()).max(newest_step);
        assert!(step >= promised, "round {round}: step {promised} was safe, but {step} is the newest");
        newest_step = step;
        if let Some(loaded) = loaded {
            assert_eq!(loaded.checkpoint, checkpoint(step, COUNT), "round {round}");
            assert_eq!(loaded.passed_over, [], "round {round}");
        }
        // Opens the store as the next process does.
        drop(Store::open(directory, 2).unwrap());
        let names = names(directory);
        let partial = names.iter().any(|name| name.ends_with(".partial"));
        assert!(!partial && names.len() <= most_names, "round {round}: {names:?}");
        // A process that was killed before it deleted a checkpoint has added at most one.
        most_names = 4.max(names.len() + 1);
    }
    assert!(newest_step > 20, "it came only to step {newest_step}");
    assert!(cut_short > 0, "no process was killed while it saved");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Saves a checkpoint within the limit on file sizes, then one beyond it.
fn outgrow_the_limit(directory: &Path) -> ExitCode {
    let mut store = Store::open(directory, 2).expect("it can be opened");
    store.save(checkpoint(1, 100)).expect("it is small");
    store.save_in_background(checkpoint(2, COUNT)).expect("the one before was small");
    println!("{}", store.save(checkpoint(3, 100)).expect_err("the one before was too large"));
    println!("{}", store.save(checkpoint(4, COUNT)).expect_err("it is too large"));
    ExitCode::SUCCESS
}

/// A limit on file sizes simulates a full disk, which would need privileges. Writing also fails in the middle of a file.
fn failed_write_keeps_older_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    // The system then returns an error instead of sending a signal.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, &this_program()]).arg(directory).stderr(Stdio::inherit());
    let output = suite::play(&mut command, "checkpoint", OUTGROW).output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let errors = String::from_utf8(output.stdout).unwrap();
    assert_eq!(errors.lines().count(), 2, "{errors}");
    for (error, step) in errors.lines().zip([2, 4]) {
        for part in [&format!(".step-000000000{step}-"), "parameters.safetensors", "(ulimit -f)", "untouched"]
        {
            assert!(error.contains(part), "no {part} in: {error}");
        }
    }
    let loaded = load_newest::<u64>(directory).unwrap().expect("one was saved");
    assert_eq!((loaded.checkpoint, loaded.passed_over), (checkpoint(1, 100), vec![]));
    assert_eq!(names(directory).len(), 2, "the lock and one checkpoint");
}

/// Returns a command that runs a program, given as further arguments, with an overlay of the folder `lower` at `merged` in this directory.
fn overlaid(directory: &Path) -> Command {
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir_all(directory.join(name)).unwrap();
    }
    let mount = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr merged";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &format!("{mount} && exec \"$0\" \"$@\"")]);
    command.current_dir(directory);
    command
}

/// Returns the reason why the kernel does not permit an overlay of two folders, if it does not.
fn no_overlay() -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    match overlaid(directory.path()).arg("true").output() {
        Ok(check) if check.status.success() => None,
        Ok(check) => Some(String::from_utf8_lossy(&check.stderr).trim().to_owned()),
        Err(error) => Some(format!("`unshare` does not start: {error}")),
    }
}

/// Continues a run whose checkpoints are in the image of a container. Overlayfs renames none of them.
fn save_over_a_lower_layer(directory: &Path) -> ExitCode {
    let mut store = Store::open(directory, 1).expect("it can be opened");
    store.save(checkpoint(2, 200)).expect("it replaces the one of the lower layer");
    assert_eq!(load_newest(directory).unwrap().unwrap().checkpoint, checkpoint(2, 200));
    store.save(checkpoint(3, 200)).expect("the older ones can be deleted");
    assert_eq!(names(directory).len(), 2, "the lock and one checkpoint");
    ExitCode::SUCCESS
}

fn checkpoints_of_a_lower_layer_are_replaced_and_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = overlaid(directory.path());
    let mut store = Store::open(&directory.path().join("lower/run"), 2).unwrap();
    for step in [1, 2] {
        store.save(checkpoint(step, 100)).unwrap();
    }
    drop(store);
    suite::play(&mut command, "checkpoint", OVERLAY).arg(this_program()).arg("merged/run");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
