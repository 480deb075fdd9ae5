//! Training gives the same result on any number of ranks, and reaches the expected accuracy on real data.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use unisono_candle::Config;
use unisono_candle::model::ModelKind;
use unisono_testing::launch::{self, Ended};
use unisono_testing::suite::{self, Test};
use unisono_testing::{shared, tests};
use unisono_train::{EpochReport, Event};

use crate::watch::{Guarded, last_event, newest, until};
use crate::{TWO_NODES, UNISONO, digits, no_two_nodes, rows};

/// The largest difference between losses of runs with the same global batch, relative to the loss. Gradients are added in another order, and rounding
/// differences grow to this after hundreds of steps.
const TOLERANCE: f64 = 0.02;

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = tests![
        same_global_batch_gives_the_same_losses,
        mpirun_and_threads_give_the_same_parameters,
        parameter_server_matches_master_worker_over_every_launcher,
        pipeline_matches_the_losses_of_one_rank_over_every_launcher,
        central_storage_matches_over_every_launcher_in_about_half_the_memory,
        world_invariant_run_gives_the_same_parameters_on_1_2_and_4_ranks,
        killed_run_resumes_with_the_same_bits_on_other_numbers_of_ranks,
        model_learns_digits_under_mpirun_and_writes_logs_and_traces,
    ];
    let over_nodes =
        tests![a_parameter_server_gives_the_same_over_two_nodes, a_pipeline_gives_the_same_over_two_nodes];
    tests.extend(over_nodes.into_iter().map(|test| test.unless(no_two_nodes)));
    tests.push(Test::new("handwritten_digits_are_learnt", mnist).deep().unless(|| missing(MNIST)));
    tests.push(Test::new("a_text_is_learnt", text).deep().unless(|| missing(TEXT)));
    tests
}

const MNIST: &str = "mnist";
const TEXT: &str = "tinyshakespeare.txt";

/// Returns the path of a real data set, in the folder from the environment variable.
fn real(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("UNISONO_TEST_DATA").unwrap_or_default()).join(name)
}

fn missing(name: &str) -> Option<String> {
    let is_there = std::env::var_os("UNISONO_TEST_DATA").is_some() && real(name).exists();
    (!is_there).then(|| format!("UNISONO_TEST_DATA names no folder that holds `{name}`"))
}

/// Returns the reports of rank 0 of a run on this many threads.
fn run(ranks: usize, settings: &Config) -> Vec<EpochReport> {
    let reports = unisono::threads(ranks, |mut comm| {
        let mut reports = Vec::new();
        let trainer = settings.trainer(&mut comm).unwrap();
        trainer
            .run(|event| {
                if let Event::Epoch(report) = event {
                    reports.push(report);
                }
            })
            .unwrap();
        reports
    });
    reports.into_iter().next().unwrap()
}

fn same_global_batch_gives_the_same_losses() {
    let epochs = if suite::is_deep() { 10 } else { 2 };
    let settings = Config { epochs, ..Config::new(digits().parse().unwrap(), ModelKind::Mlp) };
    let with_ranks = |ranks| run(ranks, &Config { batch_size: 24 / ranks, ..settings.clone() });
    let alone = with_ranks(1);
    for &ranks in if suite::is_deep() { &[2, 3, 4][..] } else { &[3] } {
        let together = with_ranks(ranks);
        assert_eq!((alone.len(), together.len()), (settings.epochs, settings.epochs));
        for (one, several) in alone.iter().zip(together) {
            let apart = (one.loss - several.loss).abs() / one.loss;
            assert!(
                apart < TOLERANCE,
                "{ranks} ranks, epoch {}: {} and {}",
                one.epoch,
                one.loss,
                several.loss
            );
        }
    }
}

/// Returns the words of a run with these arguments, on few digits unless they name other data.
fn words<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let data: &[&str] = if arguments.contains(&"--data") { &[] } else { &["--data", digits()] };
    [&["train", "--format", "json"], data, arguments].concat()
}

fn launched(ranks: usize, arguments: &[&str]) -> Ended {
    let mut command = launch::mpirun(ranks, UNISONO);
    command.args(words(arguments));
    launch::run(command, Duration::from_secs(600)).expect_success()
}

fn last(ended: &Ended) -> serde_json::Value {
    last_event(&ended.stdout, "done")
}

fn mpirun_and_threads_give_the_same_parameters() {
    let arguments = ["--epochs", "1", "--seed", "5", "--algorithm", "ring", "--hidden", "64,32"];
    let processes = last(&launched(3, &arguments));
    let threads = threads(3, &arguments);
    assert_eq!(processes["parameters_hash"], threads["parameters_hash"]);
    assert_eq!(processes["ranks"], 3);
}

const SERVED: [&str; 6] = ["--epochs", "1", "--seed", "5", "--hidden", "64,32"];
const BY_A_SERVER: [&str; 2] = ["--strategy", "parameter-server"];

/// Returns the parameters of two ranks that use `master-worker`.
fn by_master_worker() -> serde_json::Value {
    reference(2, &[&SERVED[..], &["--algorithm", "master-worker"]].concat())["parameters_hash"].clone()
}

fn parameter_server_matches_master_worker_over_every_launcher() {
    let (expected, arguments) = (by_master_worker(), [&SERVED[..], &BY_A_SERVER].concat());
    assert_eq!(threads(3, &arguments)["parameters_hash"], expected, "threads");
    assert_eq!(last(&launched(3, &arguments))["parameters_hash"], expected, "MPI");
    let mut command = Command::new(UNISONO);
    command.args(["launch", "-n", "4", "--", UNISONO]).args(words(&arguments)).args(["--servers", "2"]);
    let metrics = tempfile::tempdir().unwrap();
    command.env("UNISONO_METRICS", metrics.path());
    let processes = last(&launch::run(command, Duration::from_secs(120)).expect_success());
    assert_eq!(processes["parameters_hash"], expected, "processes, two of which serve");
    for rank in 0..4 {
        // Links of servers and workers have ranks 0 and 1, and must not write to the files of these ranks.
        let text = std::fs::read_to_string(metrics.path().join(format!("unisono-rank-{rank}.prom"))).unwrap();
        assert!(text.contains(&format!("unisono_world_size{{rank=\"{rank}\"}} 4\n")), "{text}");
        let calls = text.lines().filter(|line| line.starts_with("unisono_bytes_total{"));
        let bytes: Vec<f64> = calls.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(bytes.iter().sum::<f64>() < 100_000.0, "{text}");
    }
}

fn a_parameter_server_gives_the_same_over_two_nodes() {
    let mut command = Command::new(TWO_NODES);
    // Otherwise the links detect a single machine, and use shared memory.
    command.env("UNISONO_NETWORK", "tcp");
    command.args(["--ranks", "2,1", "--", UNISONO]).args(words(&[&SERVED[..], &BY_A_SERVER].concat()));
    let ended = last(&launch::run(command, Duration::from_secs(180)).expect_success());
    assert_eq!(ended["parameters_hash"], by_master_worker());
}

/// Two stages with two replicas each.
const STAGED: [&str; 8] =
    ["--epochs", "4", "--global-batch", "256", "--learning-rate", "0.02", "--split-at", "hidden2"];
const IN_STAGES: [&str; 4] = ["--strategy", "pipeline", "--stages", "2"];

fn pipeline_matches_the_losses_of_one_rank_over_every_launcher() {
    let arguments = [&STAGED[..], &IN_STAGES].concat();
    let expected = reference(4, &arguments);
    let alone = reference(1, &STAGED[..6]);
    for figure in ["loss", "test_loss"] {
        let (found, alone) = (expected[figure].as_f64().unwrap(), alone[figure].as_f64().unwrap());
        assert!((found - alone).abs() < 1e-5, "{figure}: {found}, on one rank {alone}");
    }
    assert_eq!(last(&launched(4, &arguments))["parameters_hash"], expected["parameters_hash"], "MPI");
    let mut command = Command::new(UNISONO);
    command.args(["launch", "-n", "4", "--", UNISONO]).args(words(&arguments));
    let processes = last(&launch::run(command, Duration::from_secs(120)).expect_success());
    assert_eq!(processes["parameters_hash"], expected["parameters_hash"], "processes");
}

fn a_pipeline_gives_the_same_over_two_nodes() {
    let arguments = [&STAGED[..], &IN_STAGES].concat();
    let mut command = Command::new(TWO_NODES);
    command.args(["--ranks", "2,2", "--", UNISONO]).args(words(&arguments));
    let ended = last(&launch::run(command, Duration::from_secs(180)).expect_success());
    assert_eq!(ended["parameters_hash"], reference(4, &arguments)["parameters_hash"]);
}

const AT_THE_CENTRE: [&str; 2] = ["--strategy", "central-storage"];

fn central_storage_matches_over_every_launcher_in_about_half_the_memory() {
    let arguments = [&STAGED[..6], &AT_THE_CENTRE].concat();
    let (expected, alone) = (threads(2, &arguments), reference(1, &STAGED[..6]));
    for figure in ["loss", "test_loss"] {
        let (found, alone) = (expected[figure].as_f64().unwrap(), alone[figure].as_f64().unwrap());
        assert!((found - alone).abs() < 1e-5, "{figure}: {found}, on one rank {alone}");
    }
    assert_eq!(last(&launched(2, &arguments))["parameters_hash"], expected["parameters_hash"], "MPI");
    let mut command = Command::new(UNISONO);
    command.args(["launch", "-n", "2", "--", UNISONO]).args(words(&arguments));
    let processes = last(&launch::run(command, Duration::from_secs(120)).expect_success());
    assert_eq!(processes["parameters_hash"], expected["parameters_hash"], "processes");

    // Few samples with few features, and five million parameters: 60 MB with gradients and velocity.
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.csv");
    let row = |row: usize| format!("{},{},class{}\n", row % 7, row % 5, row % 2);
    std::fs::write(&table, "one,other,class\n".to_owned() + &(0..100).map(row).collect::<String>()).unwrap();
    let data = format!("csv:{}", table.display());
    // Long enough for the allocator to release the memory of drawing the initial values.
    let wide = ["--data", &data, "--hidden", "2236,2236", "--epochs", "3", "--batch-size", "8"];
    let memory = |arguments: &[&str]| last(&launched(2, arguments))["memory_bytes"].as_f64().unwrap();
    let (mirrored, central) = (memory(&wide), memory(&[&wide[..], &AT_THE_CENTRE].concat()));
    let saved = mirrored - central;
    assert!((20e6..40e6).contains(&saved), "{mirrored} and {central}: half of 60 MB is {saved}");
}

/// Returns the last line of a run with threads of one process.
fn threads(ranks: usize, arguments: &[&str]) -> serde_json::Value {
    let mut command = Command::new(UNISONO);
    command.args(words(arguments)).args(["--threads", &ranks.to_string()]);
    last(&launch::run(command, Duration::from_secs(120)).expect_success())
}

/// Returns the last line of a run with threads, with which several tests compare theirs.
fn reference(ranks: usize, arguments: &[&str]) -> serde_json::Value {
    let name = format!("train on {ranks} {}", arguments.join(" "));
    serde_json::from_str(&shared::text(&name, || threads(ranks, arguments).to_string())).unwrap()
}

fn world_invariant_run_gives_the_same_parameters_on_1_2_and_4_ranks() {
    let arguments = [
        "--epochs",
        "12",
        "--hidden",
        "64",
        "--order",
        "world-invariant",
        "--global-batch",
        "192",
        "--clip-norm",
        "5",
    ];
    let alone = threads(1, &arguments);
    assert!(alone["test_accuracy"].as_f64().unwrap() > 0.8, "{alone}");
    for several in [threads(2, &arguments), threads(4, &arguments), last(&launched(2, &arguments))] {
        for figure in ["parameters_hash", "loss", "test_loss", "test_accuracy"] {
            assert_eq!(several[figure], alone[figure], "{figure}");
        }
    }
}

fn killed_run_resumes_with_the_same_bits_on_other_numbers_of_ranks() {
    let common = ["--epochs", "20", "--hidden", "64", "--global-batch", "128", "--order", "world-invariant"];
    let rate = ["--optimizer", "adamw", "--learning-rate", "0.001"];
    let undisturbed = threads(2, &[&common[..], &rate].concat());
    let saving = ["--checkpoint-every", "5", "--keep", "2", "--resume", "--checkpoint-dir"];
    let arguments = [&common[..], &rate, &saving].concat();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(UNISONO);
    command.args(words(&arguments)).arg(directory.path()).args(["--threads", "2"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Guarded(command.spawn().unwrap());
    // Kills the run with kill -9 while it continues. `restart::` kills a run several times.
    until("a checkpoint", Duration::from_secs(60), || newest(directory.path()));
    assert!(run.0.try_wait().unwrap().is_none(), "the run ended before it was killed");
    run.0.kill().unwrap();
    run.0.wait().unwrap();
    for ranks in [2, 4] {
        let copy = tempfile::tempdir().unwrap();
        let place = copy.path().join("run");
        let copied = Command::new("cp").arg("-r").arg(directory.path()).arg(&place).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let resumed = threads(ranks, &[&arguments[..], &[place.to_str().unwrap()]].concat());
        for figure in ["parameters_hash", "loss", "test_loss", "test_accuracy"] {
            assert_eq!(resumed[figure], undisturbed[figure], "{figure}, on {ranks} ranks");
        }
    }
}

/// Checks the files of a run under mpirun.
fn expect_logs_and_traces(curves: &Path, traces: &Path) {
    assert_eq!(std::fs::read_dir(curves).unwrap().count(), 1, "only rank 0 writes");
    let mut merge = Command::new(UNISONO);
    merge.arg("trace").arg(traces);
    launch::run(merge, Duration::from_secs(60)).expect_success();
    let trace = std::fs::read(traces.join("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().expect("a list of events");
    for rank in [0, 1] {
        for name in ["input", "forward", "backward", "all-reduce"] {
            let found = events.iter().any(|event| event["pid"] == rank && event["name"] == name);
            assert!(found, "{name} of rank {rank}");
        }
    }
}

fn model_learns_digits_under_mpirun_and_writes_logs_and_traces() {
    let directory = tempfile::tempdir().unwrap();
    let [curves, traces] = ["curves", "traces"].map(|name| directory.path().join(name));
    let mut train = launch::mpirun(2, UNISONO);
    train
        .args(["train", "--format", "json", "--epochs", "4", "--log-dir"])
        .arg(&curves)
        .env("UNISONO_TRACE", &traces);
    let ended = launch::run(train, Duration::from_secs(600)).expect_success();
    expect_logs_and_traces(&curves, &traces);
    let events = rows(&ended.stdout);
    assert!(events.len() > 2, "some epochs, and the end: {}", ended.stdout);
    for (epoch, event) in (1..).zip(&events[..events.len() - 1]) {
        assert_eq!((event["event"].as_str(), event["epoch"].as_u64()), (Some("epoch"), Some(epoch)));
        for key in ["loss", "test_accuracy", "samples_per_s", "exposed_communication_percent"] {
            assert!(event[key].is_number(), "{key} in {event}");
        }
    }
    assert!(last(&ended)["test_accuracy"].as_f64().unwrap() > 0.97, "{}", ended.stdout);
}

fn mnist() {
    let source = format!("idx:{}", real(MNIST).display());
    let last = last(&launched(2, &["--data", &source, "--model", "cnn"]));
    assert!(last["test_accuracy"].as_f64().unwrap() > 0.97, "{last}");
}

/// One epoch is enough to observe learning. The usual two take minutes.
fn text() {
    let source = format!("text:{}", real(TEXT).display());
    let last = last(&launched(2, &["--data", &source, "--epochs", "1"]));
    assert!(last["test_loss"].as_f64().unwrap() < 2.0, "{last}");
}
