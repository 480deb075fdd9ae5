//! The examples run, at two and at three ranks.

use std::time::Duration;

mod common;

use common::launch;

fn run(example: &str, ranks: usize) -> String {
    let target = std::env::current_exe().expect("a program knows its path");
    let directory =
        target.parent().and_then(std::path::Path::parent).expect("tests lie in target/PROFILE/deps");
    let program = directory.join("examples").join(example);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build --examples` first, in the same profile",
        program.display()
    );
    let command = launch::mpirun(ranks, program.to_str().expect("a path in UTF-8"));
    launch::run(command, Duration::from_secs(60)).expect_success().stdout
}

#[test]
fn all_reduce() {
    assert!(run("all_reduce", 2).contains("2 ranks, mean 0.5, by "));
    assert!(run("all_reduce", 3).contains("3 ranks, mean 1, by "));
}

#[test]
fn attach() {
    assert!(run("attach", 2).contains("parity 1 are 1, and their numbers add up to 1"));
    assert!(run("attach", 3).contains("parity 0 are 2, and their numbers add up to 2"));
}

#[test]
fn custom_loop() {
    for ranks in [1, 2, 3] {
        assert!(run("custom_loop", ranks).contains("y = 2.000 x + -1.000"));
    }
}

#[test]
fn overlap() {
    for ranks in [1, 2, 3] {
        assert!(run("overlap", ranks).contains("all means right"));
    }
}

/// Held back where the trainer is not built.
#[cfg(feature = "candle")]
#[test]
fn mirrored() {
    let said = run("mirrored", 2);
    assert!(said.contains("2 ranks"), "{said}");
}
