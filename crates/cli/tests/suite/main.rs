//! The integration tests of the command. What needs a feature of the command is left out of a build without it.

use std::process::ExitCode;

use unisono_testing::suite::{self, Module};

mod accelerate;
#[cfg(feature = "mpi")]
mod cli;
mod commands;
#[cfg(all(feature = "candle", feature = "mpi", feature = "plot", feature = "service"))]
mod documents;
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
mod trace;
#[cfg(all(feature = "mpi", feature = "candle"))]
mod train;
#[cfg_attr(not(feature = "candle"), allow(dead_code, reason = "the tests of restarts use all of it"))]
mod watch;

/// The command under test.
const UNISONO: &str = env!("CARGO_BIN_EXE_unisono");

/// Runs the command, which must end within two minutes.
#[cfg(any(feature = "mpi", feature = "candle", feature = "plot"))]
fn unisono(arguments: &[&str]) -> unisono_testing::launch::Ended {
    let mut command = std::process::Command::new(UNISONO);
    command.args(arguments);
    unisono_testing::launch::run(command, std::time::Duration::from_secs(120))
}

/// Counts how often a text has another in it.
#[cfg(feature = "mpi")]
fn count(text: &str, said: &str) -> usize {
    text.matches(said).count()
}

fn main() -> ExitCode {
    suite::main(&[
        Module::new("accelerate", accelerate::tests),
        Module::new("commands", commands::tests),
        #[cfg(all(feature = "candle", feature = "mpi", feature = "plot", feature = "service"))]
        Module::new("documents", documents::tests),
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
        #[cfg(all(feature = "mpi", feature = "candle"))]
        Module::new("train", train::tests),
    ])
}
