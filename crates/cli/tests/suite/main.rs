//! The integration tests of the command. Builds without a feature omit its tests.

use std::process::{Command, ExitCode};
use std::time::Duration;

use unisono_testing::launch::Ended;
use unisono_testing::suite::{self, Module};

mod accelerate;
#[cfg(feature = "mpi")]
mod cli;
mod commands;
#[cfg(feature = "full")]
mod documents;
#[cfg(feature = "candle")]
#[path = "../../../candle/tests/suite/few_digits.rs"]
mod few_digits;
mod hosts;
#[cfg(feature = "mpi")]
mod launch;
mod launcher;
#[cfg(feature = "plot")]
mod plot;
#[cfg(all(feature = "mpi", feature = "candle"))]
mod restart;
#[cfg(feature = "candle")]
mod runs;
#[cfg(feature = "candle")]
mod saved;
#[cfg(feature = "service")]
mod service;
#[cfg(all(feature = "full", not(feature = "cuda")))]
mod snapshots;
mod trace;
#[cfg(all(feature = "mpi", feature = "candle"))]
mod train;
#[cfg_attr(not(feature = "candle"), allow(dead_code, reason = "the tests of restarts use all of it"))]
mod watch;

/// The command under test.
const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// The script that runs a program on nodes that are network namespaces of this machine.
const TWO_NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/two-nodes");

/// Returns the reason why such nodes are unavailable, if they are.
fn no_two_nodes() -> Option<String> {
    match Command::new(TWO_NODES).arg("--check").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Returns few digits in files, as a value of `--data`.
#[cfg(feature = "candle")]
fn digits() -> &'static str {
    static DIGITS: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| format!("idx:{}", few_digits::folder().display()));
    &DIGITS
}

/// Runs the command, which must end within two minutes.
fn unisono(arguments: &[&str]) -> Ended {
    let mut command = Command::new(UNISONO);
    command.args(arguments);
    unisono_testing::launch::run(command, Duration::from_secs(120))
}

/// As [`unisono`], for a shell script whose `$0` is the command.
fn shell(script: &str) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", script, UNISONO]);
    unisono_testing::launch::run(command, Duration::from_secs(120))
}

/// Checks that the command refuses these arguments.
fn refused(arguments: &[&str], said: &[&str]) {
    expect_refusal(&unisono(arguments), said);
}

/// Checks a refusal: exit code 2, and one line with all these texts, for any number of ranks.
fn expect_refusal(ended: &Ended, said: &[&str]) {
    assert_eq!(ended.status.code(), Some(2), "{ended}");
    assert!(ended.stderr.starts_with("unisono: ") && ended.stderr.lines().count() == 1, "{ended}");
    for said in said {
        assert!(ended.stderr.contains(said), "no {said} in {}", ended.stderr);
    }
}

/// Parses machine-readable output, an object per line.
fn rows(stdout: &str) -> Vec<serde_json::Value> {
    stdout.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// Returns all commands in the help, and their subcommands, such as `simulate step`.
#[cfg(feature = "full")]
fn all_commands() -> Vec<String> {
    let mut found = listed("");
    let nested: Vec<_> = found.iter().flat_map(|command| listed(command)).collect();
    found.extend(nested);
    found
}

/// Returns the commands in the help of a command.
#[cfg(feature = "full")]
fn listed(command: &str) -> Vec<String> {
    let arguments: Vec<_> = command.split_whitespace().chain(["-h"]).collect();
    let help = unisono(&arguments).expect_success().stdout;
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(|name| format!("{command} {name}").trim().to_owned()).collect()
}

/// Counts the occurrences of a text in another.
#[cfg(any(feature = "mpi", feature = "plot"))]
fn count(text: &str, said: &str) -> usize {
    text.matches(said).count()
}

fn main() -> ExitCode {
    suite::main(&[
        Module::new("accelerate", accelerate::tests),
        Module::new("commands", commands::tests),
        #[cfg(feature = "full")]
        Module::new("documents", documents::tests),
        Module::new("hosts", hosts::tests),
        Module::new("launcher", launcher::tests),
        Module::new("trace", trace::tests),
        #[cfg(feature = "mpi")]
        Module::new("cli", cli::tests),
        #[cfg(feature = "mpi")]
        Module::new("cli::bench", cli::bench::tests),
        #[cfg(feature = "mpi")]
        Module::with_roles("launch", launch::tests, launch::ranks::play),
        #[cfg(feature = "plot")]
        Module::new("plot", plot::tests),
        #[cfg(all(feature = "mpi", feature = "candle"))]
        Module::with_roles("restart", restart::tests, restart::samples::play),
        #[cfg(feature = "candle")]
        Module::new("runs::across", runs::across::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::buckets", runs::buckets::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::compressed", runs::compressed::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::config", runs::config::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::evaluated", runs::evaluated::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::input", runs::input::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::interrupted", runs::interrupted::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::local", runs::local::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::names", runs::names::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::options", runs::options::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::places", runs::places::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::refused", runs::refused::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::resumed", runs::resumed::tests),
        #[cfg(feature = "candle")]
        Module::new("runs::sharded", runs::sharded::tests),
        #[cfg(feature = "candle")]
        Module::new("saved", saved::tests),
        #[cfg(feature = "candle")]
        Module::new("saved::predicted", saved::predicted::tests),
        #[cfg(feature = "service")]
        Module::new("service", service::tests),
        #[cfg(all(feature = "full", not(feature = "cuda")))]
        Module::new("snapshots", snapshots::tests),
        #[cfg(all(feature = "mpi", feature = "candle"))]
        Module::new("train", train::tests),
    ])
}
