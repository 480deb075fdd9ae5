//! Tests resuming: from matching checkpoints, and never from others.

use unisono_train::Progress;
use unisono_train::checkpoint::{self, Store};

use super::*;
use unisono_testing::suite::Test;
use unisono_testing::tests;

fn changed_data_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let (file, kept) = (directory.path().join("table.csv"), directory.path().join("kept"));
    table(&file, 90);
    train(&file, &kept, &[]);
    let source = source(&file);
    let resume = [&words(&source, &kept)[..], &["--resume"]].concat();
    let text = fs::read_to_string(&file).unwrap();
    for (from, to, said) in [
        ("near,far", "far,near", "the columns are `far`, `near`, but were `near`, `far`"),
        ("cow", "dog", "class 2 is `dog`, but was `cow`"),
        ("0.00,", "0.01,", "the samples are not those that it was trained on"),
    ] {
        assert!(text.contains(from));
        fs::write(&file, text.replace(from, to)).unwrap();
        refused(
            &resume,
            &["cannot resume from the checkpoint of step 12", "has changed since", said, "--resume"],
        );
    }
    fs::write(&file, &text).unwrap();
    let events = objects(&resume);
    assert_eq!((&events[0]["event"], &events[0]["epoch"]), (&"resumed".into(), &2.into()), "of two");
    assert_eq!(events.last().unwrap()["event"], "done");
}

/// The samples of `digits` depend on the seed, but have not changed.
fn another_seed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let run =
        ["train", "--epochs", "1", "--hidden", "8", "--checkpoint-dir", folder.path().to_str().unwrap()];
    objects(&run);
    refused(&[&run[..], &["--resume", "--seed", "4"]].concat(), &["its seed is 0, and this run's is 4"]);
}

fn run_starts_with_the_parameters_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (kept, table) = (folder.path().join("kept"), folder.path().join("table.csv"));
    super::table(&table, 300);
    let data = source(&table);
    let run = |more: &[&str]| {
        let rows =
            objects(&[&["train", "--data", &data, "--hidden", "16", "--batch-size", "8"][..], more].concat());
        rows[0]["test_loss"].as_f64().unwrap()
    };
    let first = run(&["--epochs", "8", "--checkpoint-dir", kept.to_str().unwrap()]);
    let file = unisono_candle::Saved::open(&kept).unwrap().path.join("parameters.safetensors");
    let file = file.to_str().unwrap();
    let begun = run(&["--epochs", "1", "--learning-rate", "0.001", "--initial", file]);
    assert!(begun < 0.7 * first, "{begun} after an epoch, and {first} from random values");
    assert_eq!(
        begun,
        run(&["--epochs", "1", "--learning-rate", "0.001", "--initial", file, "--threads", "1"])
    );

    // Each stage reads its parameters from the file. Gradients of micro-batches are added in another order.
    let stages = ["--strategy", "pipeline", "--threads", "2", "--global-batch", "8"];
    let staged =
        run(&[&["--epochs", "1", "--learning-rate", "0.001", "--initial", file][..], &stages].concat());
    assert!((staged / begun - 1.0).abs() < 1e-3, "{staged} by a pipeline, {begun} without");

    let words = ["train", "--data", &data, "--initial"];
    let lacks = "has no values of these shapes: hidden1.weight, hidden1.bias, output.weight; expected a file of the same model";
    refused(&[&words[..], &[file, "--hidden", "17", "--threads", "2"]].concat(), &[lacks]);
    refused(&[&words[..], &["missing"]].concat(), &["cannot read `missing` as a safetensors file"]);
}

fn different_paths_to_the_same_data_are_equivalent() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("digits");
    fs::create_dir(&folder).unwrap();
    for (name, magic, shape, size) in [
        ("train-images-idx3-ubyte", 0x803_u32, &[40_u32, 5, 5][..], 25),
        ("train-labels-idx1-ubyte", 0x801, &[40], 1),
    ] {
        let header = [&[magic], shape].concat();
        let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
        bytes.extend((0..40 * size).map(|at| (at % 10) as u8));
        fs::write(folder.join(name), bytes).unwrap();
    }
    let kept = directory.path().join("kept");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    let run = |place: &str, more: &[&str]| {
        let source = format!("idx:{place}");
        objects(&[&words(&source, &kept)[..], more].concat()).pop().unwrap()
    };
    let place = folder.to_str().unwrap();
    let first = run(&format!("{place}/"), &[]);
    for same in [place, &format!("{place}/."), link.to_str().unwrap()] {
        assert_eq!(run(same, &["--resume"])["parameters_hash"], first["parameters_hash"], "{same}");
    }
}

/// Older checkpoints have no names and no fingerprint, and store constants as text.
fn older_checkpoints_can_be_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, kept, old) =
        (directory.path().join("table.csv"), directory.path().join("kept"), directory.path().join("old"));
    table(&file, 90);
    let done = train(&file, &kept, &[]).pop().unwrap();
    let mut saved = checkpoint::load::<Progress>(&kept.join("step-0000000012")).unwrap();
    let description = saved.state.description.as_object_mut().unwrap();
    for name in ["schema", "fingerprint"] {
        assert!(description.remove(name).is_some_and(|value| !value.is_null()), "{name} is kept");
    }
    // Constants were the text of their types.
    let sgd = "OptimizerSettings { kind: Sgd, momentum: 0.9, nesterov: false, weight_decay: 0.0005, betas: (0.9, 0.999), epsilon: 1e-8 }";
    for (name, text) in [("optimizer", sgd), ("schedule", "Cosine")] {
        assert_ne!(description.insert(name.to_owned(), text.into()), None, "{name} is kept");
    }
    Store::open(&old, 1).unwrap().save(saved).unwrap();

    let source = source(&file);
    let ended =
        unisono(&["evaluate", "--checkpoint", old.to_str().unwrap(), "--format", "json"]).expect_success();
    assert!(ended.stderr.contains("saved without names"), "{}", ended.stderr);
    let evaluated: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!(evaluated["accuracy"], done["test_accuracy"]);
    let resumed = objects(&[&words(&source, &old)[..], &["--resume"]].concat()).pop().unwrap();
    assert_eq!(resumed["parameters_hash"], done["parameters_hash"]);
    // A new checkpoint contains all entries.
    let again = checkpoint::load::<Progress>(&old.join("step-0000000012")).unwrap();
    assert_eq!(again.state.description["schema"]["label"], "kind");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        run_starts_with_the_parameters_of_a_file,
        changed_data_are_detected,
        another_seed_is_named,
        different_paths_to_the_same_data_are_equivalent,
        older_checkpoints_can_be_resumed,
    ]
}
