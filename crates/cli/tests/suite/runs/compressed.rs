//! Runs whose gradients are compressed between nodes. These threads are declared to be nodes. Residuals are saved, too.

use super::*;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

const FORMATS: [&str; 8] = [
    "int8:stochastic",
    "onebit",
    "topk:0.05",
    "powersgd:2",
    // Only the deep suite needs these, because their state is saved like the state of a format above.
    "int8",
    "int4",
    "int4:stochastic",
    "threshold:0.001",
];

/// Returns the final report of a run on few digits.
fn run(nodes: &str, checkpoints: &Path, more: &[&str]) -> Value {
    let run = ["train", "--global-batch", "48", "--data", digits(), "--epochs", "4", "--hidden", "64"];
    let kept =
        ["--checkpoint-every", "40", "--keep", "100", "--checkpoint-dir", checkpoints.to_str().unwrap()];
    rows(&on_nodes(nodes, &[&run[..], &kept, &["--format", "json"], more].concat())).pop().unwrap()
}

/// A step of 168 with a checkpoint.
const BEFORE_THE_END: usize = 80;

fn resumed_run_has_the_same_result_as_an_uninterrupted_one() {
    for wire in &FORMATS[..if suite::is_deep() { FORMATS.len() } else { 4 }] {
        let directory = tempfile::tempdir().unwrap();
        let kept = directory.path();
        let undisturbed = run("1,1", kept, &["--wire", wire]);
        forget_after(BEFORE_THE_END, kept);
        let resumed = run("1,1", kept, &["--wire", wire, "--resume"]);
        assert_eq!(resumed["parameters_hash"], undisturbed["parameters_hash"], "{wire}");
        assert!(resumed["test_accuracy"].as_f64() > Some(0.6), "{wire}: {resumed}");
    }
}

fn run_uses_the_format_with_the_fastest_prediction() {
    let directory = tempfile::tempdir().unwrap();
    let formats = ["--wire", "auto:f32,bf16,int8"];
    let undisturbed = run("1,1", directory.path(), &formats);
    forget_after(BEFORE_THE_END, directory.path());
    let resumed = run("1,1", directory.path(), &[&formats[..], &["--resume"]].concat());
    assert_eq!(resumed["parameters_hash"], undisturbed["parameters_hash"]);

    let run_of_one_epoch = ["train", "--data", digits(), "--epochs", "1", "--hidden", "64"];
    let said = |nodes: &str| on_nodes(nodes, &[&run_of_one_epoch[..], &formats].concat());
    let said_of_two = said("1,1");
    let line = said_of_two.lines().find_map(|line| line.strip_prefix("gradients are sent as "));
    let (format, why) = line.expect("it says what it chose").split_once(": ").unwrap();
    assert!(why.contains(" ms a step, against "), "{said_of_two}");
    let named = tempfile::tempdir().unwrap();
    let alone = run("1,1", named.path(), &["--wire", format]);
    assert_eq!(alone["parameters_hash"], undisturbed["parameters_hash"], "{format} was chosen");
    assert!(said("2").contains("gradients are sent as f32: all ranks share a node\n"));
}

fn run_resumes_with_another_number_of_nodes() {
    let directory = tempfile::tempdir().unwrap();
    let kept = directory.path();
    run("1,1", kept, &["--wire", "powersgd:2"]);
    // Tests more nodes, a single node and, in the deep suite, nodes of several ranks.
    for &nodes in if suite::is_deep() { &["1,1,1", "2,1", "2"][..] } else { &["1,1,1", "2"] } {
        forget_after(BEFORE_THE_END, kept);
        let resumed = run(nodes, kept, &["--wire", "powersgd:2", "--resume"]);
        assert!(resumed["test_accuracy"].as_f64() > Some(0.6), "{nodes}: {resumed}");
    }
}

fn compression_between_nodes_is_reported() {
    for (nodes, said) in [
        ("1,2", "all-reduce in each of 2 nodes, and between them as int8\n"),
        ("3", "all ranks share a node: gradients are sent as f32 instead of int8\n"),
    ] {
        let run = ["train", "--data", digits(), "--epochs", "1", "--wire", "int8", "--hidden", "8"];
        let stdout = on_nodes(nodes, &[&run[..], &["--batch-size", "512"]].concat());
        assert!(stdout.contains(said), "{nodes}: {stdout}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        resumed_run_has_the_same_result_as_an_uninterrupted_one,
        run_uses_the_format_with_the_fastest_prediction,
        compression_between_nodes_is_reported,
    ];
    tests.extend(tests![run_resumes_with_another_number_of_nodes].into_iter().map(Test::deep));
    tests
}
