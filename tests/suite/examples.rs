//! Runs the examples on two and on three ranks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use unisono_testing::launch::{self, example};
use unisono_testing::{suite::Test, tests};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![all_reduce, attach, custom_loop, ndarray, overlap];
    tests.push(Test::new("burn", burn).deep());
    tests
}

fn all_reduce() {
    assert!(example("all_reduce", 2).contains("2 ranks, mean 0.5, by "));
    assert!(example("all_reduce", 3).contains("3 ranks, mean 1, by "));
}

fn attach() {
    assert!(example("attach", 2).contains("parity 1 are 1, and their numbers add up to 1"));
    assert!(example("attach", 3).contains("parity 0 are 2, and their numbers add up to 2"));
}

fn custom_loop() {
    for ranks in [1, 2, 3] {
        assert!(example("custom_loop", ranks).contains("y = 2.000 x + -1.000"));
    }
}

fn ndarray() {
    let loss = |ranks| {
        let output = example("ndarray", ranks);
        let last = output.lines().last().expect("it prints the loss");
        let same = format!("; all {ranks} ranks have the same parameters");
        let loss = last.strip_prefix("loss ").and_then(|last| last.strip_suffix(&same));
        loss.unwrap_or_else(|| panic!("{output}")).parse::<f64>().unwrap()
    };
    let alone = loss(1);
    assert!(alone < 0.01, "{alone}");
    for ranks in [2, 3] {
        assert!((loss(ranks) / alone - 1.0).abs() < 0.01, "{alone}");
    }
}

/// The tests of unisono-burn and its example. It is a separate workspace, since burn has some 200 dependencies and takes minutes to
/// build.
fn burn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/burn");
    let mut test = Command::new(env!("CARGO"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("burn");
    test.args(["test", "--release", "--locked", "--target-dir"]).arg(&target).current_dir(folder);
    launch::run(test, Duration::from_secs(1800)).expect_success();
    let program = target.join("release/examples/perceptron");
    let loss = |ranks| {
        let command = launch::processes(ranks, program.to_str().expect("a path in UTF-8"));
        let output = launch::run(command, Duration::from_secs(120)).expect_success().stdout;
        let loss = output.lines().find_map(|line| line.strip_prefix(&format!("{ranks} ranks: loss ")));
        loss.unwrap_or_else(|| panic!("{output}")).parse::<f64>().unwrap()
    };
    let alone = loss(1);
    for ranks in [2, 3] {
        assert!((loss(ranks) / alone - 1.0).abs() < 0.01, "{alone} on one rank");
    }
}

fn overlap() {
    for ranks in [1, 2, 3] {
        assert!(example("overlap", ranks).contains("all means right"));
    }
}
