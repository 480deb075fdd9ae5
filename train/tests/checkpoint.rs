//! Checkpoints of processes that are killed, or run out of space. This program launches itself: with certain arguments it is
//! the process that saves.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use libtest_mimic::{Arguments, Failed, Trial};
use unisono_train::checkpoint::{Checkpoint, Store, Tensor, load_newest};

/// The first argument of a process that saves.
const SAVE: &str = "save-in-a-loop";
const OUTGROW: &str = "outgrow-the-limit";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, SAVE, directory] => save_in_a_loop(Path::new(directory)),
        [_, OUTGROW, directory] => outgrow_the_limit(Path::new(directory)),
        _ => libtest_mimic::run(&Arguments::from_args(), trials()).exit_code(),
    }
}

fn trials() -> Vec<Trial> {
    vec![
        Trial::test("train::whoever_is_killed_leaves_whole_checkpoints", killed),
        Trial::test("train::without_room_the_older_checkpoints_stay", without_room),
    ]
}

/// Values that depend on the step.
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

/// Saves until killed, and prints which steps are safe.
fn save_in_a_loop(directory: &Path) -> ExitCode {
    let newest = load_newest::<u64>(directory).expect("the newest is whole");
    let first = newest.map_or(1, |newest| newest.checkpoint.step + 1);
    let mut store = Store::open(directory, 2).expect("whoever was here is gone");
    for step in first.. {
        // Accepting a checkpoint means that the previous one is in place.
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

fn killed() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let mut seed = 7_u64;
    let mut newest_step = 0;
    // The lock, two checkpoints, and one that a killed process did not delete.
    let mut most_names = 4;
    for round in 0..20 {
        let mut child =
            Command::new(env::current_exe()?).arg(SAVE).arg(directory).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let safe = thread::spawn(move || lines.map_while(Result::ok).last());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_micros(5_000 + (seed >> 33) % 100_000));
        child.kill()?;
        child.wait()?;
        let safe = safe.join().expect("it only reads");

        let loaded = load_newest::<u64>(directory)?;
        let step = loaded.as_ref().map_or(0, |loaded| loaded.checkpoint.step);
        let promised = safe.map_or(Ok(0), |step| step.parse::<u64>())?.max(newest_step);
        if step < promised {
            return Err(format!("round {round}: step {promised} was safe, but {step} is the newest").into());
        }
        newest_step = step;
        if let Some(loaded) = loaded {
            assert_eq!(loaded.checkpoint, checkpoint(step, COUNT), "round {round}");
            assert_eq!(loaded.passed_over, [], "round {round}");
        }
        // Like the next process.
        drop(Store::open(directory, 2)?);
        let names: Vec<_> = fs::read_dir(directory)?.map(|entry| entry.unwrap().file_name()).collect();
        let partial = names.iter().any(|name| name.to_string_lossy().ends_with(".partial"));
        assert!(!partial && names.len() <= most_names, "round {round}: {names:?}");
        // A process killed before it deleted any has added at most one.
        most_names = 4.max(names.len() + 1);
    }
    assert!(newest_step > 20, "it came only to step {newest_step}");
    Ok(())
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

/// A limit on file sizes simulates a full disk, which would need privileges: writing fails in the middle of a file too.
fn without_room() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    // Makes the system return an error instead of sending a signal.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", limited])
        .arg(env::current_exe()?)
        .arg(OUTGROW)
        .arg(directory)
        .stderr(Stdio::inherit())
        .output()?;
    assert!(output.status.success(), "{}", output.status);
    let errors = String::from_utf8(output.stdout)?;
    assert_eq!(errors.lines().count(), 2, "{errors}");
    for (error, step) in errors.lines().zip([2, 4]) {
        for part in [&format!(".step-000000000{step}-"), "parameters.safetensors", "(ulimit -f)", "untouched"]
        {
            assert!(error.contains(part), "no {part} in: {error}");
        }
    }
    let loaded = load_newest::<u64>(directory)?.expect("one was saved");
    assert_eq!((loaded.checkpoint, loaded.passed_over), (checkpoint(1, 100), vec![]));
    assert_eq!(fs::read_dir(directory)?.count(), 2, "the lock and one checkpoint");
    Ok(())
}
