//! Runs whose options are contradictory, have no effect, or require too much memory.

use super::*;
use crate::{expect_refusal, few_digits};
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn options_without_effect_are_refused() {
    for (words, said) in [
        (&["--nesterov", "--optimizer", "adamw"][..], "--nesterov has no effect without --optimizer sgd"),
        (&["--momentum", "0.5", "--optimizer", "adamw"], "--momentum has no effect without --optimizer sgd"),
        (&["--hidden", "8", "--model", "cnn"], "--hidden has no effect without --model mlp"),
        (&["--shards", "4"], "--shards has no effect without --order world-invariant"),
        (&["--step-factor", "0.5"], "--step-factor has no effect without --schedule step"),
        (&["--step-epochs", "5"], "--step-epochs has no effect without --schedule step"),
        (&["--context", "5"], "--context has no effect without --data text:FILE"),
        (&["--augment"], "--augment has no effect without --data images:DIR"),
        (&["--image-size", "8"], "--image-size has no effect without --data images:DIR"),
        (&["--normalize", "measured"], "--normalize has no effect without --data images:DIR"),
        (&["--order", "world-invariant", "--algorithm", "ring"], "the algorithm ring would not be used"),
        (&["--algorithm", "nccl", "--device", "cpu"], "the algorithm nccl works on GPU memory"),
    ] {
        refused(&[&["train", "--threads", "2"], words].concat(), &[said]);
    }
    for (optimizer, said) in [
        ("lion:momentum=0.9", "unknown field `momentum`, expected `beta1` or `beta2`"),
        ("adam", "expected sgd, adamw, lion, lamb"),
    ] {
        refused(&["train", "--threads", "2", "--optimizer", optimizer], &[said]);
    }
    refused(&["bench-step", "--threads", "2", "--algorithm", "nccl"], &["nccl works on GPU memory"]);
    for (words, said) in [
        (&["--context", "5"][..], "--context has no effect without --model transformer"),
        (
            &["--model", "cnn", "--hidden", "8"],
            "--hidden has no effect without --model mlp, resnet or transformer",
        ),
    ] {
        refused(&[&["bench-step", "--threads", "2"], words].concat(), &[said]);
    }
}

/// The header matches the run.
fn world_invariant_run_reports_its_reduction() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("table.csv");
    table(&file, 90);
    let (source, kept) = (source(&file), directory.path().join("kept"));
    let said = unisono(&[&words(&source, &kept)[..], &["--order", "world-invariant"]].concat())
        .expect_success()
        .stdout;
    assert!(said.contains("all-reduce by recursive-doubling: the order of additions"), "{said}");
}

fn refused_numbers_are_shown_in_readable_form() {
    for (words, said) in [
        (&["--learning-rate", "0"][..], "--learning-rate is 0: it must be above 0, and at most 1e6"),
        (&["--learning-rate", "-1"], "--learning-rate is -1: it must be above 0"),
        (&["--learning-rate", "nan"], "--learning-rate is NaN"),
        (&["--schedule", "step", "--step-factor", "nan"], "--step-factor is NaN: it must be from 0 to 1"),
        (&["--weight-decay", "-1"], "--weight-decay is -1: it must be from 0 to 1e6"),
        (&["--clip-norm", "-1"], "--clip-norm is -1: it must be above 0, and at most 1e30"),
    ] {
        refused(&[&["train", "--threads", "2"], words].concat(), &[said]);
    }
    refused(
        &["train", "--epochs", "-1"],
        &["invalid value `-1` for `--epochs <N>`: expected a whole number from 0"],
    );
}

/// The run is refused before any allocation, because no machine has this much memory.
fn runs_that_exceed_the_memory_are_refused() {
    let most = usize::MAX.to_string();
    let train = |words: &[&str], said: &[&str]| {
        let said = [&["of memory is available: choose a smaller model or batch"], said].concat();
        let data: &[&str] = if words.contains(&"--data") { &[] } else { &["--data", digits()] };
        refused(&[&["train", "--threads", "2"], data, words].concat(), &said);
    };
    train(
        &["--hidden", "1000000,1000000"],
        &["the 2 rank(s) on ", "parameters 3728 GiB", "gradients 3728 GiB", "optimizer 3728 GiB"],
    );
    train(&["--hidden", &most], &["parameters "]);
    train(&["--hidden", &format!("{most},{most}"), "--optimizer", "adamw"], &["parameters "]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("text");
    fs::write(&file, "abcdefghij".repeat(70_000)).unwrap();
    let text = format!("text:{}", file.display());
    train(&["--data", &text, "--context", "30000"], &["batches "]);
    let step = |words: &[&str]| {
        refused(&[&["bench-step", "--threads", "2"], words].concat(), &["of memory is available"]);
    };
    step(&["--hidden", "1000000,1000000"]);
    step(&["--batch-size", "1000000000000"]);
    // The rank that lacks memory reports it.
    let script = "[ $RANK = 1 ] && own='--batch-size 1000000000000'; exec \"$0\" bench-step --steps 1 $own";
    let ended = unisono(&["launch", "-n", "2", "--", "sh", "-c", script, UNISONO]);
    assert!(ended.stderr.contains("of memory is available"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("reports an error"), "{}", ended.stderr);
    for huge in ["--batch-size", "--global-batch"] {
        refused(
            &["train", "--data", digits(), "--threads", "2", huge, &most],
            &["a global batch of 18446744073709551615"],
        );
    }
}

fn tf_config_with_several_workers_is_refused_with_the_start_command() {
    let train = |config: &str, more: &[&str]| {
        let mut command = Command::new(UNISONO);
        command.env("TF_CONFIG", config).args(["train", "--epochs", "1", "--hidden", "8"]).args(more);
        launch::run(command, Duration::from_secs(60))
    };
    let three = r#"{"cluster": {"worker": ["one:2222", "two:2222", "three:2222"]}, "task": {"type": "worker", "index": 1}}"#;
    let meant = "`mpirun -np 3 --host one,two,three unisono train --epochs 1 --hidden 8`";
    expect_refusal(&train(three, &[]), &[meant]);
    expect_refusal(&train("{", &[]), &["TF_CONFIG is \"{\""]);
    // Here the number of ranks is known, and matches the single worker.
    train(three, &["--data", digits(), "--threads", "2"]).expect_success();
    train(r#"{"cluster": {"worker": ["one:2222"]}}"#, &["--data", digits()]).expect_success();
}

fn threads_of_an_elastic_run_are_refused() {
    let launch = ["launch", "--elastic", "-n", "2", "--", UNISONO];
    let train = ["train", "--strategy", "parameter-server", "--elastic", "--threads", "2"];
    let ended = unisono(&[&launch[..], &train].concat());
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    let said = "--threads 2 would start a separate world in each of the 2 launched processes";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

/// On several machines, each rank has a command line and data of its own.
fn ranks_of_different_runs_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let relabelled = directory.path().join("relabelled");
    fs::create_dir(&relabelled).unwrap();
    for entry in fs::read_dir(few_digits::folder()).unwrap() {
        let (file, mut bytes) = (entry.as_ref().unwrap().path(), fs::read(entry.unwrap().path()).unwrap());
        if file.ends_with("train-labels-idx1-ubyte") {
            *bytes.last_mut().unwrap() ^= 1;
        }
        fs::write(relabelled.join(file.file_name().unwrap()), bytes).unwrap();
    }
    let (table_of_0, table_of_1) = (directory.path().join("0.csv"), directory.path().join("1.csv"));
    table(&table_of_0, 200);
    fs::write(&table_of_1, fs::read_to_string(&table_of_0).unwrap().replace("0.", "3.")).unwrap();
    let digits = format!("--data {}", digits());
    let relabelled = format!("--data idx:{}", relabelled.display());
    let [table_of_0, table_of_1] = [table_of_0, table_of_1].map(|file| format!("--data {}", source(&file)));
    for (of_0, of_1, said) in [
        (&digits[..], &format!("{digits} --seed 5")[..], "rank 1 has --seed 5, and rank 0 --seed 0"),
        (&digits, &format!("{digits} --ema 0.9"), "rank 1 has --ema 0.9, and rank 0 no --ema"),
        (
            &digits,
            &format!("{digits} --algorithm ring"),
            "rank 1 has --algorithm ring, and rank 0 no --algorithm",
        ),
        (&digits, &format!("{digits} --device cpu"), "rank 1 has --device cpu, and rank 0 --device auto"),
        (&digits, &relabelled, "on rank 1 are not those of rank 0: use the same data"),
        (&table_of_0, &table_of_1, "the names or statistics of classes, columns or images of csv:"),
    ] {
        let script = format!(
            "[ $RANK = 1 ] && own='{of_1}' || own='{of_0}'; exec \"$0\" train --hidden 8 --epochs 1 $own"
        );
        let ended = unisono(&["launch", "-n", "2", "--", "sh", "-c", &script, UNISONO]);
        assert_eq!(ended.status.code(), Some(2), "{script}: {}\n{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(said), "{script}: no {said} in {}", ended.stderr);
    }
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        options_without_effect_are_refused,
        world_invariant_run_reports_its_reduction,
        refused_numbers_are_shown_in_readable_form,
        runs_that_exceed_the_memory_are_refused,
        tf_config_with_several_workers_is_refused_with_the_start_command,
        threads_of_an_elastic_run_are_refused,
        ranks_of_different_runs_are_refused,
    ]
}
