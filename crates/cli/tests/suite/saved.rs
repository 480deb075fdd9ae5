//! Evaluations and predictions of a saved model with the command, as used by people and programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::Value;
use unisono_candle::model::ModelKind;
use unisono_candle::{Config, Description, Part, Sampling, Saved};
use unisono_data::Source;
use unisono_testing::launch::Ended;
use unisono_testing::suite::Test;
use unisono_testing::{shared, tests};
use unisono_train::Summary;

use crate::{digits, few_digits::SAMPLES, rows};

pub(crate) mod predicted;

/// Trains for an epoch on four ranks, and saves a checkpoint at the end.
fn trained(directory: &Path, settings: &Config) -> Summary {
    let settings = Config { epochs: 1, checkpoint_dir: Some(directory.into()), ..settings.clone() };
    let summaries = unisono::threads(4, |mut comm| settings.trainer(&mut comm).unwrap().run(|_| ()).unwrap());
    summaries.into_iter().next().unwrap()
}

/// A run that several tests share: its checkpoints, and its summary.
struct Run {
    directory: PathBuf,
    summary: Value,
}

static DIGITS: LazyLock<Run> = LazyLock::new(|| {
    let settings = Config {
        hidden: Some(vec![16]),
        batch_size: 25,
        // Twenty steps are enough to learn something, but not everything.
        learning_rate: 0.2,
        seed: 3,
        ..Config::new(digits().parse().unwrap(), ModelKind::Mlp)
    };
    let folder = shared::folder("digits", |folder| {
        let summary = trained(&folder.join("kept"), &settings);
        fs::write(folder.join("summary"), serde_json::to_string(&summary).unwrap()).unwrap();
    });
    let summary = fs::read_to_string(folder.join("summary")).unwrap();
    Run { directory: folder.join("kept"), summary: serde_json::from_str(&summary).unwrap() }
});

/// Ten letters in a fixed order, which a model learns quickly.
static TEXT: LazyLock<PathBuf> = LazyLock::new(|| {
    shared::folder("text", |folder| {
        let file = folder.join("text");
        fs::write(&file, "abcdefghi\n".repeat(400)).unwrap();
        let settings =
            Config { context: 10, batch_size: 4, ..Config::new(Source::Text(file), ModelKind::Transformer) };
        trained(folder, &settings);
    })
});

fn words<'a>(command: &'a str, checkpoint: &'a Path, arguments: &[&'a str]) -> Vec<&'a str> {
    [&[command, "--checkpoint", checkpoint.to_str().unwrap()], arguments].concat()
}

fn unisono(command: &str, checkpoint: &Path, arguments: &[&str]) -> Ended {
    crate::unisono(&words(command, checkpoint, arguments))
}

fn stdout(command: &str, checkpoint: &Path, arguments: &[&str]) -> String {
    unisono(command, checkpoint, arguments).expect_success().stdout
}

fn objects(command: &str, checkpoint: &Path, arguments: &[&str]) -> Vec<Value> {
    rows(&stdout(command, checkpoint, &[arguments, &["--format", "json"]].concat()))
}

fn refused(command: &str, checkpoint: &Path, arguments: &[&str], said: &[&str]) {
    crate::refused(&words(command, checkpoint, arguments), said);
}

fn metrics_are_measured_on_any_number_of_ranks() {
    let measured = |threads: &str| {
        let arguments = ["--metrics", "top-1,top-3,f1", "--threads", threads];
        objects("evaluate", &DIGITS.directory, &arguments).pop().unwrap()
    };
    let alone = measured("1");
    assert_eq!(alone["metrics"]["top-1"], alone["accuracy"]);
    assert!(alone["metrics"]["top-3"].as_f64() > alone["accuracy"].as_f64(), "{alone}");
    assert!(alone["metrics"]["f1"].as_f64().is_some_and(|f1| (0.0..1.0).contains(&f1)), "{alone}");
    assert_eq!(measured("3"), alone);
    let said = ["expected top-K, such as top-5, f1, r2 or mae"];
    refused("evaluate", &DIGITS.directory, &["--metrics", "recall"], &said);
}

fn figures_match_the_run_on_any_number_of_ranks() {
    let Run { directory, summary } = &*DIGITS;
    let mut alone = None;
    for threads in ["1", "2", "3", ""] {
        let threads: &[&str] = if threads.is_empty() { &[] } else { &["--threads", threads] };
        let [line] = &objects("evaluate", directory, threads)[..] else { panic!("not one line") };
        assert_eq!(line["event"], "evaluated");
        assert_eq!(line["accuracy"], summary["test_accuracy"], "{threads:?}");
        assert_eq!(line["loss"], summary["test_loss"], "{threads:?}");
        assert_eq!(line["parameters_hash"], summary["parameters_hash"]);
        assert_eq!(line["step"], 20);
        // 64 does not divide the number of samples.
        assert_eq!(line["targets"], SAMPLES[1]);
        assert_eq!(alone.get_or_insert_with(|| line.clone()), line);
    }
    assert!(summary["test_accuracy"].as_f64() > Some(0.2), "it has learnt something: {summary}");
}

fn training_samples_can_be_evaluated() {
    let line = |threads| {
        let arguments = ["--split", "train", "--threads", threads];
        objects("evaluate", &DIGITS.directory, &arguments).pop().unwrap()
    };
    assert_eq!(line("1")["targets"], SAMPLES[0]);
    assert_eq!(line("1"), line("3"));
}

fn text_is_continued() {
    let checkpoint = TEXT.as_path();
    let continued = |arguments: &[&str]| {
        let arguments = [&["--prompt", "cde", "--length", "25"], arguments].concat();
        let row = objects("predict", checkpoint, &arguments).pop().unwrap();
        assert_eq!(row["prompt"], "cde");
        let text = row["continuation"].as_str().unwrap().to_owned();
        assert_eq!(text.chars().count(), 25);
        text
    };
    // The text also continues beyond the context of ten characters.
    assert_eq!(continued(&["--temperature", "0"]), "fghi\nabcdefghi\nabcdefghi\n");
    let hot = |seed| continued(&["--temperature", "50", "--seed", seed]);
    assert_eq!(hot("1"), hot("1"));
    assert_ne!(hot("1"), hot("2"));

    let text = stdout("predict", checkpoint, &["--prompt", "ab", "--length", "3", "--temperature", "0"]);
    assert_eq!(text, "abcde\n");
    for (arguments, said) in [
        (&["--prompt", "aXbXé"][..], &["\"Xé\" is none of the 10 characters", "\"\\nabcdefghi\""][..]),
        (&["--prompt", ""], &["the prompt is empty"]),
        (&["--prompt", "a", "--temperature", "-1"], &["temperature is -1"]),
        (&["--prompt", "a", "--temperature", "NaN"], &["temperature is NaN"]),
        (&["--data", "digits"], &["text of 10 distinct characters", "images of"]),
        (&["--image", "a.png"], &["trained on text of 10 distinct characters, not on images"]),
    ] {
        refused("predict", checkpoint, arguments, said);
    }
    let source = format!("text:{}", checkpoint.join("text").display());
    refused(
        "predict",
        checkpoint,
        &["--data", &source],
        &["the transformer of text", "it continues a prompt"],
    );
}

fn another_text_is_encoded_with_the_saved_vocabulary() {
    let checkpoint = TEXT.as_path();
    let directory = tempfile::tempdir().unwrap();
    let source = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        format!("text:{}", path.display())
    };
    let evaluated = |data: &str, threads| {
        objects("evaluate", checkpoint, &["--data", data, "--threads", threads]).pop().unwrap()
    };
    // Fewer letters in the same order. In a vocabulary of this text, every token would be different.
    let fewer = source("fewer", &"efghi".repeat(200));
    let own = objects("evaluate", checkpoint, &[]).pop().unwrap();
    let (same, other) = (own["accuracy"].as_f64().unwrap(), evaluated(&fewer, "1"));
    assert!(same > 0.99, "{own}");
    assert!(
        (0.6..0.9).contains(&other["accuracy"].as_f64().unwrap()),
        "four of five letters go on so: {other}"
    );
    assert_eq!(other, evaluated(&fewer, "3"));

    let more = source("more", &"abcXYZ".repeat(200));
    let said = ["6 distinct characters, and \"XYZ\" is none of the 10", "\"\\nabcdefghi\"", "more"];
    refused("evaluate", checkpoint, &["--data", &more, "--threads", "2"], &said);
}

fn data_that_do_not_fit_are_refused() {
    let checkpoint = DIGITS.directory.as_path();
    let directory = tempfile::tempdir().unwrap();
    let folders = |name: &str, side: u32, classes: u32| {
        for class in 0..classes {
            let folder = directory.path().join(format!("{name}/{class:02}"));
            fs::create_dir_all(&folder).unwrap();
            for index in 0..10 {
                image::GrayImage::new(side, side).save(folder.join(format!("{index}.png"))).unwrap();
            }
        }
        format!("images:{}", directory.path().join(name).display())
    };
    let table = directory.path().join("table.csv");
    fs::write(&table, format!("a,b,label\n{}", "1,2,x\n2,1,y\n".repeat(10))).unwrap();
    let said = ["more/10`: is not a class", "the numbers from 0 to 9"];
    refused("evaluate", checkpoint, &["--data", &folders("more", 28, 11)], &said);
    let known = "images of 28x28 pixels in 10 classes: expected data like these";
    let (data, found) = (format!("csv:{}", table.display()), "has rows of 2 numbers in 2 classes");
    for (command, more) in [("predict", &[][..]), ("evaluate", &["--threads", "3"])] {
        refused(command, checkpoint, &[&["--data", &data], more].concat(), &[&data, found, known]);
    }
    // Images of another size are resized.
    objects("evaluate", checkpoint, &["--data", &folders("small", 9, 10)]);
    refused("evaluate", checkpoint, &["--data", "text:missing"], &["cannot read `missing`"]);
    refused("predict", checkpoint, &["--prompt", "a"], &["the mlp of images", "continues no prompt"]);
}

fn table_model_is_evaluated_and_predicts() {
    let directory = tempfile::tempdir().unwrap();
    let rows = |rows: usize| -> String {
        let row = |at: usize| format!("{},{},{}\n", at * 7 % 11, at * 5 % 13, ["no", "yes"][at % 2]);
        std::iter::once("a,b,label\n".to_owned()).chain((0..rows).map(row)).collect()
    };
    let (file, other) = (directory.path().join("a.csv"), directory.path().join("b.csv"));
    fs::write(&file, rows(150)).unwrap();
    fs::write(&other, rows(90)).unwrap();
    let settings = Config { batch_size: 8, ..Config::new(Source::Csv(file), ModelKind::Mlp) };
    let summary = trained(directory.path(), &settings);
    let line = objects("evaluate", directory.path(), &["--threads", "2"]).pop().unwrap();
    assert_eq!(line["accuracy"].as_f64(), Some(summary.last.test_accuracy));
    assert_eq!(line["targets"], 15);

    let ended = unisono("predict", directory.path(), &["--data", &format!("csv:{}", other.display())]);
    assert_eq!(ended.stdout.lines().count(), 9);
    assert!(ended.stderr.is_empty(), "{}", ended.stderr);
    refused(
        "predict",
        directory.path(),
        &["--image", "a.png"],
        &["rows of 2 numbers in 2 classes, not on images"],
    );
}

fn incomplete_checkpoints_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    for command in ["evaluate", "predict"] {
        let arguments: &[&str] =
            if command == "predict" { &["--data", "digits"] } else { &["--threads", "3"] };
        refused(
            command,
            Path::new("missing/directory"),
            arguments,
            &["no checkpoint in `missing/directory`"],
        );
        refused(command, empty.path(), arguments, &["no checkpoint in", "--checkpoint-dir"]);
        let broken = tempfile::tempdir().unwrap();
        let saved = Saved::open(&DIGITS.directory).unwrap().path;
        let checkpoint = broken.path().join(saved.file_name().unwrap());
        fs::create_dir(&checkpoint).unwrap();
        for entry in fs::read_dir(&saved).unwrap() {
            let entry = entry.unwrap();
            let mut bytes = fs::read(entry.path()).unwrap();
            if entry.file_name() == "parameters.safetensors" {
                *bytes.last_mut().unwrap() ^= 1;
            }
            fs::write(checkpoint.join(entry.file_name()), bytes).unwrap();
        }
        refused(command, broken.path(), arguments, &["no checkpoint in", "parameters.safetensors"]);
        refused(command, &checkpoint, arguments, &["parameters.safetensors` is not a complete checkpoint"]);
    }
}

fn invalid_requests_are_refused() {
    for (arguments, said) in [
        (&[][..], "required arguments were not provided"),
        (&["--data", "digits", "--prompt", "a"], "cannot be used with"),
        (&["--prompt", "a", "--limit", "3"], "cannot be used with `--limit <N>`"),
        (&["--prompt", "a", "--data-cache", "d"], "cannot be used with"),
        (&["--image", "a.png", "--split", "all"], "cannot be used with `--split <SPLIT>`"),
        (&["--data", "digits", "--length", "3"], "cannot be used with `--length <N>`"),
    ] {
        refused("predict", &DIGITS.directory, arguments, &[said]);
    }
}

fn library_matches_the_command() {
    let saved = Saved::open(&DIGITS.directory).unwrap();
    let Description { model, hidden, seed, .. } = &saved.description;
    assert_eq!((*model, hidden.as_deref(), *seed), (ModelKind::Mlp, Some(&[16][..]), 3));
    let tallies = unisono::threads(2, |mut comm| {
        let own = Saved::open_on_all(&mut comm, &DIGITS.directory).unwrap();
        let tally = own.evaluate(&mut comm, None, Part::Test, &[]).unwrap().test.tally;
        (own.parameters_hash().unwrap(), tally)
    });
    assert_eq!(tallies[0], tallies[1]);
    assert_eq!(DIGITS.summary["parameters_hash"], *tallies[0].0);
    assert_eq!(DIGITS.summary["test_accuracy"].as_f64(), Some(tallies[0].1.accuracy()));

    // The values of another model with the same description.
    let mut other = saved.clone();
    other.description.hidden = Some(vec![17]);
    let message = other.replica().err().unwrap().to_string();
    assert!(message.contains("does not hold the mlp") && message.contains("[784, 16] there"), "{message}");
    let sampling = Sampling { temperature: 1.0, seed: 0 };
    let message = saved.predictor().unwrap().continued("a", 1, sampling).unwrap_err().to_string();
    assert!(message.contains("continues no prompt"), "{message}");
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        metrics_are_measured_on_any_number_of_ranks,
        figures_match_the_run_on_any_number_of_ranks,
        training_samples_can_be_evaluated,
        text_is_continued,
        another_text_is_encoded_with_the_saved_vocabulary,
        data_that_do_not_fit_are_refused,
        table_model_is_evaluated_and_predicts,
        incomplete_checkpoints_are_refused,
        invalid_requests_are_refused,
        library_matches_the_command,
    ]
}
