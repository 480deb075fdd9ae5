//! Tests the directories that runs write to: they are not overwritten, and checked before the end of the run.

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn checkpoints_of_another_run_are_kept_without_overwrite() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first.csv"), directory.path().join("second.csv"));
    table(&first, 150);
    table(&second, 90);
    let kept = directory.path().join("kept");
    let evaluated = || objects(&["evaluate", "--checkpoint", kept.to_str().unwrap()]).pop().unwrap();
    train(&first, &kept, &["--checkpoint-every", "4"]);
    let (names, before) = (names_in(&kept), evaluated());
    // An older checkpoint is kept in addition if its loss is the lowest.
    let expected = [12, 16, 18].map(|step| format!("step-{step:010}"));
    assert!(names.ends_with(&expected) && names.len() <= 4, "{names:?}");

    let source = source(&second);
    let again = words(&source, &kept);
    let run = format!("(mlp on csv:{}, after 18 steps)", first.display());
    refused(&again, &["holds the checkpoints of another run", &run, "--resume", "--overwrite"]);
    assert_eq!((names_in(&kept), evaluated()), (names, before));

    let newest = kept.join("step-0000000018");
    refused(&words(&source, &newest), &["is itself a checkpoint"]);
    refused(
        &[&again[..], &["--overwrite", "--resume"]].concat(),
        &["--overwrite deletes what --resume would"],
    );

    let done = train(&second, &kept, &["--overwrite"]).pop().unwrap();
    assert_eq!(names_in(&kept), ["step-0000000012"]);
    assert_eq!(evaluated()["parameters_hash"], done["parameters_hash"]);
}

fn unwritable_log_directory_is_refused_before_any_file_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table.csv");
    table(&file, 90);
    let (source, kept) = (source(&file), directory.path().join("kept"));
    let below = file.join("below");
    for place in [below, "/proc/curves".into()] {
        let curves = place.to_str().unwrap();
        let words = [&words(&source, &kept)[..], &["--log-dir", curves]].concat();
        refused(&words, &["cannot write curves to", curves, "expected"]);
        assert_eq!(names_in(directory.path()), ["table.csv"], "{curves}");
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        checkpoints_of_another_run_are_kept_without_overwrite,
        unwritable_log_directory_is_refused_before_any_file_is_created,
    ]
}
