//! The integration tests of training with candle.

use std::path::Path;
use std::process::ExitCode;

use unisono_candle::Config;
use unisono_data::{Options, Pass, Source, Values};
use unisono_testing::suite::{self, Module};
use unisono_testing::{idx, shared};
use unisono_train::{AdamW, NamedRule};

mod central;
mod colour;
#[cfg(feature = "mpi")]
mod examples;
mod fit;
mod metrics;
mod norm;
mod optimizers;
mod pipeline;
mod server;

/// The number of training samples in [`digits`].
const SAMPLES: usize = 2000;

/// Returns a data set of few digits, in files. Each rank of a run on generated digits draws ten times as many, which takes longer than a short
/// training.
fn digits() -> Source {
    let folder = shared::folder("few-digits", |folder| {
        let options = Options { train_samples: SAMPLES, test_samples: 500, ..Options::default() };
        let drawn = unisono_data::load(&Source::Digits, &options).expect("digits are drawn");
        for (part, split) in [("train", drawn.train), ("t10k", drawn.test)] {
            let all: Vec<_> = (0..split.len()).collect();
            let (values, labels) = split.gather(&all, Pass::Evaluation).expect("they are in memory");
            let Values::Levels(pixels) = values else { panic!("digits are images") };
            idx::write(folder, part, &pixels, &labels);
        }
    });
    Source::Idx(folder)
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
