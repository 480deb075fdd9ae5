//! Options of `train` that no other module tests.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns the JSON objects of a short run on a table, on two ranks.
fn events(more: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("kinds.csv");
    table(&data, 300);
    train(&data, &folder.path().join("kept"), more)
}

fn warm_up_starts_with_smaller_steps() {
    let loss = |share: &str| {
        let epochs = events(&["--schedule", "constant", "--warm-up", share]);
        epochs.iter().find_map(|event| event["loss"].as_f64()).unwrap()
    };
    let (none, half, all) = (loss("0"), loss("0.5"), loss("1"));
    assert!(none < half && half < all, "{none}, {half}, {all}");
    refused(&["train", "--warm-up", "1.5"], &["1.5"]);
}

fn dropout_changes_training_and_depends_on_the_seed() {
    let hash = |more: &[&str]| events(more).pop().unwrap()["parameters_hash"].clone();
    let dropped = hash(&["--dropout", "0.5"]);
    assert_eq!(dropped, hash(&["--dropout", "0.5"]));
    assert_ne!(dropped, hash(&["--dropout", "0.5", "--seed", "2"]));
    assert_ne!(dropped, hash(&[]));
}

fn checkpoint_is_saved_after_the_given_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("kinds.csv");
    table(&data, 300);
    let saved = |seconds: &str| {
        let kept = folder.path().join(seconds);
        train(&data, &kept, &["--keep", "1000", "--checkpoint-every-s", seconds]);
        names_in(&kept).len()
    };
    assert_eq!(saved("600"), 1, "the end alone");
    assert!(saved("0") > 2, "in the midst of an epoch too");
}

fn diverging_parameters_end_all_processes_and_are_named() {
    let mut command = launch::mpirun(2, UNISONO);
    let run =
        "train --hidden 8 --epochs 2 --learning-rate 1e6 --warm-up 0 --optimizer sgd --schedule constant";
    command.args(run.split(' ')).args(["--data", digits()]);
    let ended = launch::run(command, Duration::from_secs(120));
    assert!(!ended.status.success(), "{}", ended.stdout);
    for said in [" on rank ", " in step ", "a lower learning rate"] {
        assert!(ended.stderr.contains(said), "no {said} in {}", ended.stderr);
    }
    assert!(!ended.stdout.contains("trained in"), "{}", ended.stdout);
}

/// Runs a single process. The cause is the last line, without MPI's abort message.
fn run_without_a_launcher_fails_with_only_its_cause() {
    let run = "train --hidden 8 --epochs 1 --learning-rate 1e6 --warm-up 0 --schedule constant";
    let ended = unisono(&[&run.split(' ').collect::<Vec<_>>()[..], &["--data", digits()]].concat());
    assert_eq!(ended.status.code(), Some(1), "{ended}");
    assert!(ended.stderr.starts_with("unisono: rank 0 "), "{ended}");
    assert!(ended.stderr.lines().all(|line| line.starts_with("unisono: ")), "{ended}");
}

fn lines_for_people_have_at_most_100_columns() {
    for strategy in ["--strategy central-storage", "--strategy pipeline", "--shard-optimizer"] {
        let run = format!("train --hidden 8 --epochs 1 --batch-size 512 --threads 2 {strategy}");
        let run = [&run.split(' ').collect::<Vec<_>>()[..], &["--data", digits()]].concat();
        let ended = unisono(&run).expect_success();
        assert!(ended.stdout.lines().all(|line| line.chars().count() <= 100), "{ended}");
        assert!(ended.stdout.contains("\n    "), "a long line goes on in the next: {ended}");
    }
}

fn pipeline_of_one_rank_is_reported() {
    let run = |ranks| {
        let run =
            ["train", "--hidden", "8", "--epochs", "1", "--batch-size", "512", "--strategy", "pipeline"];
        unisono(&[&run[..], &["--data", digits(), "--threads", ranks]].concat())
    };
    let said = "each pipeline has one rank";
    assert!(run("1").expect_success().stderr.contains(said));
    assert!(!run("2").expect_success().stderr.contains(said));
}

fn short_help_omits_options_that_long_help_shows() {
    let shown = |help| {
        let ended = unisono(&["train", help]).expect_success();
        ended.stdout.lines().filter(|line| line.trim_start().starts_with("--")).count()
    };
    assert_eq!(shown("-h"), 27);
    assert!(shown("--help") > 60);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        warm_up_starts_with_smaller_steps,
        dropout_changes_training_and_depends_on_the_seed,
        checkpoint_is_saved_after_the_given_seconds,
        diverging_parameters_end_all_processes_and_are_named,
        run_without_a_launcher_fails_with_only_its_cause,
        lines_for_people_have_at_most_100_columns,
        pipeline_of_one_rank_is_reported,
        short_help_omits_options_that_long_help_shows,
    ]
}
