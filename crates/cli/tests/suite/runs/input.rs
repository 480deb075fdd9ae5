//! Snapshots of decoded images, damaged images, and the memory of the input pipeline.

use std::process::Stdio;

use super::*;
use crate::watch::{Guarded, until};
use unisono_testing::suite::Test;
use unisono_testing::tests;

/// Writes three classes of this many images, each with its own pattern. One class has another image size.
fn images(folder: &Path, count: u32) -> String {
    for class in 0..3 {
        let directory = folder.join(format!("class {class}"));
        fs::create_dir_all(&directory).unwrap();
        for number in 0..count {
            let level =
                |x, y| image::Rgb([x * 7 * (class + 1), y * 9 + number, x * y + class].map(|v| v as u8));
            let side = if number == 5 { 40 } else { 32 };
            image::RgbImage::from_fn(side, 32, level)
                .save(directory.join(format!("{number:03}.png")))
                .unwrap();
        }
    }
    format!("images:{}", folder.display())
}

const TRAIN: [&str; 9] =
    ["train", "--epochs", "2", "--batch-size", "8", "--hidden", "8", "--colour", "--augment"];

fn hash(words: &[&str]) -> Value {
    let done = objects(words).pop().expect("a last line");
    assert_eq!(done["event"], "done", "{done}");
    done["parameters_hash"].clone()
}

/// Returns the files of the only snapshot in a directory.
fn shards(snapshots: &Path) -> Vec<String> {
    let [only] = &names_in(snapshots)[..] else { panic!("not one: {:?}", names_in(snapshots)) };
    names_in(&snapshots.join(only))
}

fn snapshot_keeps_the_bits_and_is_read_by_the_next_run() {
    let (folder, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = images(folder.path(), 40);
    let run = [&TRAIN[..], &["--threads", "2", "--data", &source]].concat();
    let plain = hash(&run);
    let kept = [&run[..], &["--snapshot", at.path().to_str().unwrap()]].concat();
    assert_eq!(hash(&kept), plain);
    let written = shards(at.path());
    assert_eq!(written.len(), 16 + 12 + 1, "{written:?}");
    let again = unisono(&kept).expect_success().stdout;
    assert!(again.contains("samples are read from the snapshot `") && !again.contains("written"), "{again}");

    // A damaged file is reported, and written again.
    let damaged = at.path().join(&names_in(at.path())[0]).join(written.last().unwrap());
    fs::File::options().write(true).open(&damaged).unwrap().set_len(100).unwrap();
    let told = unisono(&kept).expect_success().stderr;
    assert!(told.contains(&format!("unisono: `{}` ", damaged.display())), "{told}");
    assert!(told.contains("; it is written anew"), "{told}");
    assert_eq!(hash(&kept), plain);

    // The processes of a node write the snapshot together.
    let packed = tempfile::tempdir().unwrap();
    let launched = |more: &[&str]| {
        let run = [&["launch", "-n", "2", "--", UNISONO][..], &TRAIN, &["--data", &source], more].concat();
        hash(&run)
    };
    let together = ["--snapshot", packed.path().to_str().unwrap(), "--snapshot-compression", "lz4"];
    assert_eq!(launched(&together), launched(&[]));
    assert_eq!(shards(packed.path()), written);
}

fn image_preprocessing_is_reported_and_configurable() {
    let folder = tempfile::tempdir().unwrap();
    let source = images(folder.path(), 20);
    fs::write(folder.path().join("class 1/a.tiff"), "another format").unwrap();
    let run = |more: &[&str]| {
        let run = [
            "train",
            "--threads",
            "2",
            "--epochs",
            "1",
            "--batch-size",
            "8",
            "--hidden",
            "8",
            "--data",
            &source,
        ];
        unisono(&[&run[..], more].concat()).expect_success().stdout
    };
    let told = run(&[]);
    for expected in [
        "3 of 54 training images are resized and cropped to 32x32 pixels",
        "images are read in colour",
        "images are normalised by the measured means and deviations",
        "class 1/a.tiff` skipped: expected files",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    let asked =
        ["--image-size", "16x20", "--colour", "no", "--normalize", "0.5/0.25", "--augment", "mirror,erase"];
    let told = run(&asked);
    assert!(told.contains("54 of 54 training images are resized and cropped to 16x20 pixels"), "{told}");
    assert!(!told.contains("in colour") && !told.contains("measured"), "{told}");
}

fn run_killed_during_a_write_leaves_no_partial_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let source = images(folder.path(), 150);
    let run = [&TRAIN[..], &["--threads", "1", "--data", &source]].concat();
    let plain = hash(&run);
    let mut cut_short = 0;
    for shards_before in [0, 4, 16] {
        let at = tempfile::tempdir().unwrap();
        let kept = [&run[..], &["--snapshot", at.path().to_str().unwrap(), "--format", "json"]].concat();
        let mut command = Command::new(UNISONO);
        command.args(&kept).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut writing = Guarded(command.spawn().unwrap());
        let whole = || {
            let shards = |key: &String| names_in(&at.path().join(key));
            let names = names_in(at.path()).first().map(shards).unwrap_or_default();
            names.iter().filter(|name| name.ends_with(".safetensors")).count()
        };
        until("some shards are written", Duration::from_secs(60), || {
            let is_over = writing.0.try_wait().unwrap().is_some();
            (is_over || whole() >= shards_before).then_some(())
        });
        writing.0.kill().unwrap();
        writing.0.wait().unwrap();
        cut_short += usize::from((1..32).contains(&whole()));
        assert_eq!(hash(&kept[..kept.len() - 2]), plain, "killed after {shards_before} shards");
        let names = shards(at.path());
        assert!(!names.iter().any(|name| name.ends_with(".part")), "{names:?}");
    }
    assert!(cut_short > 0, "no run was killed while it wrote");
}

fn damaged_images_are_an_error_or_are_skipped_counted_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = images(folder.path(), 40);
    let damaged = folder.path().join("class 1/007.png");
    fs::write(&damaged, &fs::read(&damaged).unwrap()[..60]).unwrap();
    let run = [&TRAIN[..], &["--threads", "2", "--data", &source, "--format", "json"]].concat();
    let ended = unisono(&run);
    // The statistics of the images are measured before the run.
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("class 1/007.png") && ended.stderr.contains("cannot be decoded"),
        "{}",
        ended.stderr
    );

    let checkpoints = tempfile::tempdir().unwrap();
    // All ranks of a pipeline read the same samples.
    for strategy in ["mirrored", "pipeline"] {
        let saved = checkpoints.path().join(strategy);
        let saved = saved.to_str().unwrap();
        let skips = ["--on-bad-sample", "skip:1", "--strategy", strategy, "--checkpoint-dir", saved];
        let ended = unisono(&[&run[..], &skips].concat()).expect_success();
        let notice = "unisono: 1 damaged sample skipped: `";
        assert_eq!(ended.stderr.matches(notice).count(), 1, "named once: {}", ended.stderr);
        assert!(ended.stderr.contains("class 1/007.png"), "{}", ended.stderr);
        let epochs = ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let epochs = epochs.filter(|line| line["event"] == "epoch");
        let skipped: Vec<_> = epochs.map(|line| line["skipped_samples"].clone()).collect();
        assert_eq!(skipped, [1, 1], "{strategy}");
        // One of the parts has the damaged sample.
        let evaluated = ["train", "test"].map(|split| {
            let words = ["evaluate", "--checkpoint", saved, "--split", split, "--format", "json"];
            let ended = unisono(&words).expect_success();
            let line: Value = serde_json::from_str(&ended.stdout).unwrap();
            (line["skipped_samples"].as_u64().unwrap_or(0), ended.stderr.matches(notice).count())
        });
        assert_eq!(evaluated.iter().filter(|found| **found == (1, 1)).count(), 1, "{evaluated:?}");
        assert_eq!(evaluated.iter().filter(|found| **found == (0, 0)).count(), 1, "{evaluated:?}");
    }
    let ended = unisono(&[&run[..], &["--on-bad-sample", "skip:0"]].concat());
    assert!(ended.stderr.contains("0 damaged samples were skipped before"), "{}", ended.stderr);
    refused(
        &["train", "--threads", "1", "--on-bad-sample", "skip"],
        &["--on-bad-sample has no effect without"],
    );
    refused(&["train", "--threads", "1", "--on-bad-sample", "keep"], &["expected `error`, `skip`"]);
}

fn input_memory_is_bounded_or_refused() {
    let run = ["train", "--data", digits(), "--threads", "1", "--epochs", "1", "--batch-size", "100"];
    let plain = hash(&run);
    // 4 steps of 100 samples of 785 values.
    assert_eq!(hash(&[&run[..], &["--input-memory", "1256000"]].concat()), plain);
    refused(
        &[&run[..], &["--input-memory", "1000000"]].concat(),
        &["the input memory of 976 KiB holds 3 step(s) of 306 KiB"],
    );
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        snapshot_keeps_the_bits_and_is_read_by_the_next_run,
        image_preprocessing_is_reported_and_configurable,
        run_killed_during_a_write_leaves_no_partial_snapshot,
        damaged_images_are_an_error_or_are_skipped_counted_and_named,
        input_memory_is_bounded_or_refused,
    ]
}
