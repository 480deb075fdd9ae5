//! Runs with local steps of ranks, which average their parameters.

use super::*;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const RUN: [&str; 5] = ["train", "--global-batch", "48", "--hidden", "64"];

/// Returns the final report of a run on few digits.
fn run(ranks: &str, more: &[&str]) -> Value {
    objects(&[&RUN[..], &["--data", digits(), "--threads", ranks], more].concat()).pop().unwrap()
}

fn local_steps_converge() {
    let runs = [
        &["--local-steps", "16", "--outer", "nesterov:0.7,0.6", "--verify-replicas-every", "50"][..],
        &["--local-steps", "8"],
        &["--local-steps", "32", "--verify-replicas-every", "50"],
        &["--local-steps", "8", "--optimizer", "adamw", "--learning-rate", "0.01", "--clip-norm", "1"],
    ];
    for more in runs.into_iter().take(if suite::is_deep() { runs.len() } else { 1 }) {
        let done = run("3", &[&["--epochs", "10"][..], more].concat());
        assert_eq!(done["event"], "done");
        assert!(done["test_accuracy"].as_f64() > Some(0.75), "{more:?}: {done}");
    }
}

fn checkpoint_waits_for_the_end_of_a_round_and_resumes_with_the_same_bits() {
    // Tests an outer momentum, whose state is saved too, and plain averages in the deep suite.
    let outers = ["nesterov:0.7,0.6", "average"];
    for outer in outers.into_iter().take(if suite::is_deep() { 2 } else { 1 }) {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path().to_str().unwrap();
        let words = ["--local-steps", "8", "--outer", outer, "--checkpoint-every", "20", "--keep", "100"];
        let words = [&words[..], &["--epochs", "3", "--checkpoint-dir", kept]].concat();
        let undisturbed = run("2", &words);
        assert_eq!(names_in(directory.path())[0], "step-0000000024", "20 is in the midst of a round");
        forget_after(24, directory.path());
        let resumed = run("2", &[&words[..], &["--resume"]].concat());
        assert_eq!(resumed["parameters_hash"], undisturbed["parameters_hash"], "{outer}");
        forget_after(24, directory.path());
        let others = run("3", &[&words[..], &["--resume"]].concat());
        assert!(others["test_accuracy"].as_f64() > Some(0.6), "{others}");
        refused(
            &[&RUN[..], &["--data", digits(), "--threads", "2"], &words[2..], &["--resume"]].concat(),
            &[if outer == "average" {
                "its local steps is"
            } else {
                "--outer has no effect without --local-steps"
            }],
        );
    }
}

fn incompatible_options_are_refused_and_local_steps_are_reported() {
    let with = |more: &[&'static str]| [&["train", "--threads", "2", "--local-steps", "4"], more].concat();
    refused(&with(&["--wire", "int8"]), &["--local-steps", "--wire int8"]);
    refused(&with(&["--shard-optimizer"]), &["--local-steps", "--shard-optimizer"]);
    refused(&with(&["--order", "world-invariant"]), &["--local-steps", "--order world-invariant"]);
    refused(&["train", "--outer", "nesterov:0.7,0.9"], &["--outer has no effect without --local-steps N"]);
    let ended = unisono(&with(&["--outer", "adam"]));
    assert!(ended.stderr.contains("nesterov:RATE,MOMENTUM"), "{}", ended.stderr);
    let said =
        unisono(&with(&["--data", digits(), "--epochs", "1", "--hidden", "8"])).expect_success().stdout;
    assert!(said.contains("parameters are averaged after local steps: 4 steps, then average\n"), "{said}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        local_steps_converge,
        checkpoint_waits_for_the_end_of_a_round_and_resumes_with_the_same_bits,
        incompatible_options_are_refused_and_local_steps_are_reported,
    ]
}
