//! `kill -9` of a rank or the launcher, at random moments and while a checkpoint is written.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::watch::{
    Guarded, descendants, is_writing, kill, last_event, newest, ranks, supervise, until, with_argument,
};
use crate::{UNISONO, digits};
use unisono_testing::launch::{self, mpirun};
use unisono_testing::random::Random;
use unisono_testing::suite;

const RANKS: usize = 2;
const MINUTE: Duration = Duration::from_secs(60);

fn train(epochs: usize, more: &[&str]) -> Command {
    let mut command = mpirun(RANKS, UNISONO);
    let epochs = epochs.to_string();
    command.args([
        "train",
        "--data",
        digits(),
        "--model",
        "mlp",
        "--format",
        "json",
        "--global-batch",
        "128",
    ]);
    command.args(["--epochs", &epochs]).args(more);
    command
}

/// Returns the number of times that a run is killed.
pub(crate) fn kills() -> usize {
    match env::var("UNISONO_TEST_KILLS") {
        Ok(text) => text.parse().expect("UNISONO_TEST_KILLS is a number of kills"),
        Err(_) if suite::is_deep() => 20,
        Err(_) => 3,
    }
}

pub(crate) fn killed_at_random_moments_a_run_resumes_with_the_same_result() {
    ends_as_undisturbed(kills(), train);
}

/// One rank is the server of the other.
pub(crate) fn killed_run_with_a_parameter_server_is_resumed() {
    ends_as_undisturbed(1 + usize::from(suite::is_deep()), |epochs, more| {
        let mut command = train(epochs, more);
        command.args(["--strategy", "parameter-server"]);
        command
    });
}

/// Residuals are restored too.
pub(crate) fn killed_run_with_compression_is_resumed() {
    ends_as_undisturbed(1 + usize::from(suite::is_deep()), |epochs, more| {
        let mut command = train(epochs, more);
        // Each rank is a node, because gradients are compressed only between nodes.
        command.args(["--wire", "int8", "--uncompressed-steps", "30"]).env("UNISONO_NODES", "1,1");
        command
    });
}

/// A checkpoint contains all updates, even if buckets were in flight at the end of the step.
pub(crate) fn killed_run_with_overlap_is_resumed() {
    ends_as_undisturbed(1 + usize::from(suite::is_deep()), |epochs, more| {
        let mut command = train(epochs, more);
        command.args(["--overlap", "across", "--bucket-bytes", "16K"]);
        command.env("UNISONO_NODES", "1,1").env("UNISONO_NETWORK", "tcp");
        command
    });
}

/// Kills a run this many times at random moments, and compares its result with a run without kills. `train` returns the command for a number of
/// epochs, with additional arguments.
fn ends_as_undisturbed(kills: usize, train: impl Fn(usize, &[&str]) -> Command) {
    let started = Instant::now();
    // The run makes about four epochs between two kills.
    let epochs = 4 * (kills + kills / 2 + 2);
    let undisturbed = launch::run(train(epochs, &[]), 10 * MINUTE).expect_success();
    let expected = last_event(&undisturbed.stdout, "done");

    let directory = tempfile::tempdir().unwrap();
    let (place, output) = (directory.path().join("checkpoints"), directory.path().join("output"));
    let saving = ["--checkpoint-dir", place.to_str().unwrap(), "--checkpoint-every", "10", "--keep", "2"];
    let restarts = kills.to_string();
    let mut command = supervise(&["--max-restarts", &restarts, "--wait-s", "0"], &train(epochs, &saving));
    command.stdin(Stdio::null()).stdout(File::create(&output).unwrap());
    let said = directory.path().join("said");
    command.stderr(File::create(&said).unwrap());
    let mut run = Guarded(command.spawn().unwrap());
    let root = run.0.id();
    let mut random = Random::new(11);
    let mut in_the_middle = 0;
    for round in 0..kills {
        // Wait for a new checkpoint: a run that is killed before saving makes no progress.
        let before = newest(&place);
        until("a new checkpoint", MINUTE, || {
            assert!(run.0.try_wait().unwrap().is_none(), "the run ended before kill {round}");
            (newest(&place) != before).then_some(())
        });
        if round % 3 == 1 {
            until("a checkpoint is being written", MINUTE, || is_writing(&place).then_some(()));
        } else {
            thread::sleep(Duration::from_micros(random.below(100_000) as u64));
        }
        let ranks = ranks(root);
        // The launcher is the child of the supervisor.
        let launcher = descendants(root).first().copied();
        let victims: Vec<u32> = ranks.iter().copied().chain(launcher).collect();
        assert_eq!(victims.len(), RANKS + 1, "two ranks and a launcher: {victims:?}");
        kill("KILL", random.one_of(&victims));
        in_the_middle += usize::from(is_writing(&place));
        until("the ranks end", Duration::from_secs(20), || {
            let still = ranks.iter().any(|rank| crate::watch::words(*rank).len() > 1);
            (!still).then_some(())
        });
    }
    let status = run.ended(10 * MINUTE);
    let (output, said) = (fs::read_to_string(output).unwrap(), fs::read_to_string(said).unwrap());
    assert!(status.success(), "{status}\n{output}\n{said}");
    let found = last_event(&output, "done");
    for figure in ["parameters_hash", "loss", "test_loss", "test_accuracy"] {
        assert_eq!(found[figure], expected[figure], "{figure}\n{said}");
    }
    let restarts =
        said.lines().filter(|line| line.starts_with("supervise:") && line.contains("restarting in")).count();
    assert_eq!(restarts, kills, "{said}");
    assert!(!is_writing(&place), "nothing is half-written in the end");
    assert_eq!(with_argument(place.to_str().unwrap()), [0_u32; 0], "no process is left");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "counted: restart: killed {kills} times, {in_the_middle} of them while a checkpoint was being written; {seconds:.0} s"
    );
}
