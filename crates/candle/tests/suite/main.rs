//! The integration tests of training with candle.

use std::path::Path;
use std::process::ExitCode;

use unisono_candle::Config;
use unisono_data::Source;
use unisono_testing::suite::{self, Module};
use unisono_train::{AdamW, NamedRule};

mod central;
mod colour;
#[cfg(feature = "mpi")]
mod examples;
mod few_digits;
mod fit;
mod metrics;
mod norm;
mod optimizers;
mod pipeline;
mod server;

fn digits() -> Source {
    Source::Idx(few_digits::folder())
}

/// Returns a run of two epochs that saves at every 30th step, and can be stopped.
fn saving(directory: &Path, settings: Config) -> Config {
    Config {
        epochs: 2,
        optimizer: NamedRule::new(AdamW::default()),
        weight_decay: 0.0,
        learning_rate: 1e-3,
        checkpoint_dir: Some(directory.to_owned()),
        checkpoint_every: Some(30),
        resume: true,
        ..settings
    }
}

fn main() -> ExitCode {
    suite::main(&[
        Module::new("central", central::tests),
        Module::new("colour", colour::tests),
        #[cfg(feature = "mpi")]
        Module::new("examples", examples::tests),
        Module::new("fit", fit::tests),
        Module::new("metrics", metrics::tests),
        Module::new("norm", norm::tests),
        Module::new("norm::runs", norm::runs::tests),
        Module::new("optimizers", optimizers::tests),
        Module::new("pipeline::builtin", pipeline::builtin::tests),
        Module::new("pipeline::stages", pipeline::stages::tests),
        Module::new("server", server::tests),
        Module::new("server::evaluations", server::evaluations::tests),
        Module::new("server::shares", server::shares::tests),
    ])
}
