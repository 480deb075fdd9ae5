//! Runs of the command `train`: invalid starts, files that a run must not change, and the use of its checkpoints.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

pub(crate) mod across;
pub(crate) mod buckets;
pub(crate) mod compressed;
pub(crate) mod config;
pub(crate) mod evaluated;
pub(crate) mod input;
pub(crate) mod interrupted;
pub(crate) mod local;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod places;
pub(crate) mod refused;
pub(crate) mod resumed;
pub(crate) mod sharded;

use unisono_testing::launch;

use crate::{UNISONO, digits, refused, rows, unisono};

/// Returns the machine-readable output, an object per line.
fn objects(words: &[&str]) -> Vec<Value> {
    rows(&unisono(&[words, &["--format", "json"]].concat()).expect_success().stdout)
}

/// Returns the output of a short run on this table, on two ranks, which saves a checkpoint at its end.
fn train(table: &Path, checkpoints: &Path, more: &[&str]) -> Vec<Value> {
    objects(&[&words(&source(table), checkpoints)[..], more].concat())
}

/// Returns the arguments of a run of two epochs of a small model on two ranks.
fn words<'a>(source: &'a str, checkpoints: &'a Path) -> Vec<&'a str> {
    [&words_for(source, checkpoints)[..], &["--epochs", "2"]].concat()
}

fn words_for<'a>(source: &'a str, checkpoints: &'a Path) -> Vec<&'a str> {
    let checkpoints = checkpoints.to_str().unwrap();
    let model = ["--hidden", "8", "--batch-size", "8"];
    [&["train", "--threads", "2", "--data", source, "--checkpoint-dir", checkpoints][..], &model].concat()
}

fn source(table: &Path) -> String {
    format!("csv:{}", table.display())
}

/// Returns two features that distinguish three classes. Their scales differ.
fn row(at: usize) -> (String, String, &'static str) {
    let kind = at % 3;
    let (near, far) =
        (kind as f64 + (at % 7) as f64 / 20.0, 1e4 * (2 - kind) as f64 + (at % 11) as f64 * 300.0);
    (format!("{near:.2}"), format!("{far:.1}"), ["ant", "bee", "cow"][kind])
}

fn table(path: &Path, rows: usize) {
    let rows = (0..rows).map(row).map(|(near, far, kind)| format!("{near},{far},{kind}\n"));
    fs::write(path, format!("near,far,kind\n{}", rows.collect::<String>())).unwrap();
}

/// Returns the sorted names in a directory, except the lock.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".lock").collect();
    names.sort();
    names
}

/// Deletes the checkpoints after a step.
fn forget_after(step: usize, checkpoints: &Path) {
    let last = format!("step-{step:010}");
    for name in names_in(checkpoints).iter().filter(|name| **name > last) {
        fs::remove_dir_all(checkpoints.join(name)).unwrap();
    }
}

/// Returns the output of a command whose ranks are threads, declared to be on nodes of these sizes.
fn on_nodes(nodes: &str, words: &[&str]) -> String {
    let threads = nodes.split(',').map(|size| size.parse::<usize>().unwrap()).sum::<usize>().to_string();
    let mut command = Command::new(UNISONO);
    command.env("UNISONO_NODES", nodes).args(words).args(["--threads", &threads]);
    launch::run(command, Duration::from_secs(120)).expect_success().stdout
}
