//! Evaluations during a run, and early stopping.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Returns the rows of this event.
fn of<'a>(rows: &'a [Value], event: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["event"] == event).collect()
}

fn run(more: &[&str]) -> Vec<Value> {
    let run = ["train", "--data", digits(), "--threads", "2", "--global-batch", "64", "--hidden", "32"];
    let run = [&run[..], &["--epochs", "2"]].concat();
    objects(&[&run[..], more].concat())
}

fn evaluation_frequency_does_not_change_the_result() {
    let plain = run(&[]);
    let evaluated = run(&["--evaluate-every", "10"]);
    // An epoch has 32 steps.
    let steps: Vec<_> =
        of(&evaluated, "evaluation").iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [10, 20, 30, 40, 50, 60]);
    let losses: Vec<_> =
        of(&evaluated, "evaluation").iter().map(|row| row["test_loss"].as_f64().unwrap()).collect();
    assert!(losses[5] < losses[0], "{losses:?}");
    let end = |rows: &[Value]| {
        (rows.last().unwrap()["parameters_hash"].clone(), of(rows, "epoch")[1]["test_loss"].clone())
    };
    assert_eq!(end(&evaluated), end(&plain));
    assert!(of(&plain, "evaluation").is_empty() && evaluated.last().unwrap()["ended_early"].is_null());
}

fn run_without_improvement_stops_early_and_resumes_its_count() {
    // No evaluation improves by this much. The first one is therefore the best, and the third after it is the last.
    let patience = ["--evaluate-every", "10", "--patience", "3", "--min-delta", "1000"];
    let kept = tempfile::tempdir().unwrap();
    let place =
        ["--checkpoint-every", "5", "--keep", "100", "--checkpoint-dir", kept.path().to_str().unwrap()];
    let early = run(&[&place[..], &patience].concat());
    let done = early.last().unwrap();
    assert_eq!(done["ended_early"]["step"], 32, "after 20, 30, and the epoch's end: {done}");
    assert_eq!((&done["ended_early"]["best"]["step"], &done["epoch"]), (&10.into(), &1.into()));

    forget_after(25, kept.path());
    let resumed = run(&[&place[..], &patience, &["--resume"]].concat());
    let again = resumed.last().unwrap();
    assert_eq!(
        (&again["ended_early"], &again["parameters_hash"]),
        (&done["ended_early"], &done["parameters_hash"])
    );
    // A run that has ended stays so.
    let ended = run(&[&place[..], &patience, &["--resume"]].concat());
    assert_eq!(ended.last().unwrap()["parameters_hash"], done["parameters_hash"]);
    assert!(of(&ended, "evaluation").is_empty(), "{ended:?}");
    // With more patience, the run continues with the next epoch.
    let more = [&place[..], &["--resume", "--evaluate-every", "10", "--patience", "50"]].concat();
    assert_eq!(run(&more).last().unwrap()["epoch"], 2);
}

fn run_reports_the_reason_for_an_early_stop() {
    let run = [
        "train",
        "--data",
        digits(),
        "--threads",
        "1",
        "--hidden",
        "8",
        "--batch-size",
        "100",
        "--epochs",
        "9",
        "--patience",
        "1",
        "--min-delta",
        "1000",
    ];
    let said = unisono(&run).expect_success().stdout;
    assert!(said.contains("stopped early after step 40: the lowest test loss is "), "{said}");
    assert!(said.contains(", after step 20 (evaluations since: 1)\n"), "{said}");
    refused(&["train", "--patience", "1", "--min-delta", "-1"], &["--min-delta is -1: it must be"]);
    let alone = unisono(&["train", "--min-delta", "1"]);
    assert!(alone.stderr.contains("--patience"), "{}", alone.stderr);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        evaluation_frequency_does_not_change_the_result,
        run_without_improvement_stops_early_and_resumes_its_count,
        run_reports_the_reason_for_an_early_stop,
    ]
}
