//! Configurations in files.

use super::*;
use unisono_testing::suite::{self, Test};
use unisono_testing::tests;

/// Returns the hash of a run on digits, on two ranks.
fn hash(more: &[&str]) -> Value {
    let run = [&["train", "--data", digits(), "--threads", "2"], more].concat();
    objects(&run).pop().unwrap()["parameters_hash"].clone()
}

fn written(more: &[&str]) -> String {
    unisono(&[&["train", "--write-config"], more].concat()).expect_success().stdout
}

fn written_configuration_gives_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let by_file = ["--config", file.to_str().unwrap()];
    let lines = [
        "--hidden 16,8 --epochs 1",
        "--hidden 8 --epochs 1 --optimizer adamw:beta2=0.95 --weight-decay 0.3 --ema 0.9 --learning-rate 0.003 --schedule step \
         --step-epochs 1 --warm-up 0 --clip-norm 0.5 --dropout 0.1 --seed 3 --metrics top-2,f1 --bucket-bytes 64K --nesterov=false",
        "--hidden 16,8 --epochs 1 --strategy pipeline --stages 2 --pipeline-schedule gpipe --split-at hidden2 --input-memory 64M",
        "--model cnn --epochs 1 --global-batch 512 --order world-invariant --shards 4 --momentum 0.8 --nesterov",
        "--hidden 8 --epochs 1 --local-steps 4 --outer nesterov:0.7,0.6 --wire f32 --prefetch 3",
    ];
    for line in lines.into_iter().take(if suite::is_deep() { lines.len() } else { 3 }) {
        let line: Vec<_> = line.split_whitespace().collect();
        let text = written(&line);
        fs::write(&file, &text).unwrap();
        assert_eq!(written(&by_file), text, "{line:?}");
        assert_eq!(hash(&by_file), hash(&line), "{line:?}");
    }
    let keys = |text: &str| text.lines().filter(|line| line.ends_with(" =") || line.contains(" = ")).count();
    assert!(keys(&written(&[])) >= 64, "every option is there");
}

fn command_line_options_override_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    fs::write(
        &file,
        "model = \"cnn\"\nepochs = 3\nhidden = [8]\nmomentum = 0.5\nnesterov = true\nbucket-bytes = 65536",
    )
    .unwrap();
    let more = ["--model", "mlp", "--epochs", "1", "--nesterov=false"];
    let both = [&["--config", file.to_str().unwrap()], &more[..]].concat();
    let alone = ["--epochs", "1", "--hidden", "8", "--momentum", "0.5", "--bucket-bytes", "64K"];
    assert_eq!(written(&both), written(&alone));
    assert_eq!(hash(&both), hash(&alone));
}

fn errors_name_the_line_and_the_key_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    for (text, said) in [
        ("epochs = 1\nepocs = 2", &["run.toml:2: there is no `epocs`: did you mean `epochs`?"][..]),
        ("\nstop = true", &["run.toml:2: there is no `stop`"]),
        ("epochs = \"x\"", &["run.toml:1: `epochs = \"x\"`: ", "expected a whole number"]),
        ("learning-rate = \"x\"", &["expected a number"]),
        ("hidden = 3", &["expected a list"]),
        (
            "augment = true",
            &["unknown transform `true`: expected `affine`", "`usual` is the default of --augment"],
        ),
        ("augment = [1]", &["`augment = [1]`: expected a text as on the command line, or a number"]),
        ("seed = 1\nwire = \"f31\"", &["run.toml:2: `wire = \"f31\"`: ", "int8:stochastic"]),
        ("optimizer = \"lion:momentum=0.9\"", &["run.toml:1: ", "unknown field `momentum`"]),
        ("epochs 3", &["run.toml:1: `epochs 3`: "]),
        ("# None.\nepochs = 0", &["`epochs` (", "run.toml:2) is 0: it must be at least 1"]),
        (
            "nesterov = true\noptimizer = \"lamb\"",
            &["`nesterov` (", "run.toml:1) has no effect without --optimizer sgd"],
        ),
        ("resume = true", &["run.toml:1) has no effect without --checkpoint-dir DIR"]),
        ("log-dir = \"\"", &["`log-dir` (", "run.toml:1) is empty: expected a path"]),
    ] {
        fs::write(&file, text).unwrap();
        refused(&["train", "--threads", "2", "--config", file.to_str().unwrap()], said);
    }
    let seed = "9223372036854775808";
    refused(
        &["train", "--write-config", "--seed", seed],
        &["a file cannot hold `seed = 9223372036854775808`: "],
    );
    // The command line sets the same option.
    fs::write(&file, "epochs = 3").unwrap();
    refused(&["train", "--config", file.to_str().unwrap(), "--epochs", "0"], &["--epochs is 0"]);
    refused(&["train", "--config", "nowhere.toml"], &["cannot read `nowhere.toml`: No such file"]);
}

/// A command that reads data accepts the options of data, and reads them from the file of a run.
fn other_commands_read_their_options_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    fs::write(&file, "batch-size = 500\nepochs = 9\noptimizer = \"lamb\"").unwrap();
    let lines =
        objects(&["inspect-input", "--data", digits(), "--config", file.to_str().unwrap(), "--epochs", "1"]);
    assert_eq!((lines.len(), &lines[0]["batch_size"]), (1, &Value::from(500)));
    refused(&["inspect-input", "--learning-rate", "1"], &["this command has no --learning-rate"]);
}

pub(crate) fn tests() -> Vec<Test> {
    tests![
        written_configuration_gives_the_same_run,
        command_line_options_override_the_file,
        errors_name_the_line_and_the_key_of_the_file,
        other_commands_read_their_options_from_the_file,
    ]
}
