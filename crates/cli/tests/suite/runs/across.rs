//! Runs whose next forward pass overlaps the reduction of buckets: their results have the same bits as runs without overlap.

use super::*;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

/// Returns the hash at the end of a run with these arguments, where each rank is a node.
fn hash(ranks: usize, launched: &[&str], words: &[&str]) -> String {
    let nodes = vec!["1"; ranks].join(",");
    let mut command = Command::new(UNISONO);
    command.env("UNISONO_NODES", nodes).env("UNISONO_NETWORK", "tcp").args(launched).args(words);
    let said = launch::run(command, Duration::from_secs(120)).expect_success().stdout;
    said.trim_end().rsplit_once(' ').expect("the last line ends with it").1.to_owned()
}

/// Starts a run on this many ranks, and returns its hash.
type Start = fn(usize, &[&str]) -> String;

fn by_threads(ranks: usize, words: &[&str]) -> String {
    hash(ranks, &["train", "--threads", &ranks.to_string()], words)
}

/// The processes are connected by TCP.
fn by_processes(ranks: usize, words: &[&str]) -> String {
    hash(ranks, &["launch", "-n", &ranks.to_string(), "--", UNISONO, "train"], words)
}

fn result_has_the_bits_of_a_run_that_waits_for_all_buckets() {
    let run = [
        "--data",
        digits(),
        "--global-batch",
        "192",
        "--epochs",
        "2",
        "--hidden",
        "64,48,32",
        "--bucket-bytes",
        "4K",
    ];
    // Each case is three runs.
    let (all, cases): (&[usize], _) = if suite::is_deep() { (&[1, 2, 3], 5) } else { (&[2], 3) };
    for &ranks in all {
        for more in [
            &["--checkpoint-every", "7", "--verify-replicas-every", "5"][..],
            &["--nesterov", "--wire", "bf16"],
            &["--optimizer", "adamw", "--shard-optimizer", "--algorithm", "ring"],
            &["--optimizer", "adamw", "--wire", "int8"],
            &["--clip-norm", "0.5"],
        ]
        .into_iter()
        .take(if ranks == 1 { 1 } else { cases })
        {
            let hash = |overlap, start: Start| {
                let directory = tempfile::tempdir().unwrap();
                let place = ["--checkpoint-dir", directory.path().to_str().unwrap()];
                let place: &[&str] = if more.contains(&"--checkpoint-every") { &place } else { &[] };
                start(ranks, &[&run[..], more, &["--overlap", overlap], place].concat())
            };
            let expected = hash("beside", by_threads);
            assert_eq!(hash("across", by_threads), expected, "{ranks} ranks, {more:?}");
            assert_eq!(hash("across", by_processes), expected, "{ranks} ranks, {more:?}");
        }
    }
}

fn every_model_has_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    fs::write(&text, "to be, or not to be, that is the question. ".repeat(60)).unwrap();
    let text = format!("text:{}", text.display());
    for run in [
        &["--model", "cnn", "--global-batch", "1000"][..],
        &["--data", &text, "--model", "transformer", "--global-batch", "16", "--context", "16"],
    ] {
        let with = |overlap, start: Start| {
            start(2, &[run, &["--epochs", "1", "--bucket-bytes", "1K", "--overlap", overlap]].concat())
        };
        let expected = with("beside", by_threads);
        assert_eq!(with("across", by_threads), expected, "{run:?}");
        assert_eq!(with("across", by_processes), expected, "{run:?}");
    }
}

fn bench_step_measures_overlapping_steps_and_rounds_of_local_steps() {
    let step = ["bench-step", "--hidden", "8", "--batch-size", "4", "--steps", "5", "--threads", "2"];
    for more in [
        &["--overlap", "across"][..],
        &["--local-steps", "4"],
        &["--local-steps", "3", "--overlap", "across"],
    ] {
        let row = objects(&[&step[..], more].concat()).pop().unwrap();
        assert!(row["ms_per_step"].as_f64() > Some(0.0), "{more:?}: {row}");
    }
    let conflict = [&step[..], &["--local-steps", "4", "--wire", "bf16"]].concat();
    refused(&conflict, &["with --local-steps no gradient is sent", "--wire bf16"]);
}

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        result_has_the_bits_of_a_run_that_waits_for_all_buckets,
        bench_step_measures_overlapping_steps_and_rounds_of_local_steps,
    ];
    tests.extend(tests![every_model_has_the_same_bits].into_iter().map(Test::deep));
    tests
}
