//! The integration tests of training with candle.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use unisono_candle::Config;
use unisono_data::{Inputs, Options, Pass, Source};
use unisono_testing::shared;
use unisono_testing::suite::{self, Module};
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

/// Returns the generated digits in files, from which each rank reads them. They are drawn once per run of tests, because that takes longer than most
/// runs on them.
fn digits() -> Source {
    Source::Idx(shared::folder("digits", |folder| {
        let digits = unisono_data::load(&Source::Digits, &Options::default()).unwrap();
        for (part, split) in [("train", digits.train), ("t10k", digits.test)] {
            let batch = split.batch(&Vec::from_iter(0..split.len()), Pass::Evaluation).unwrap();
            let Inputs::Pixels(pixels) = batch.inputs else { panic!("digits are images") };
            // Levels from 0 to 255 before the normalisation of MNIST.
            let levels = pixels.iter().map(|grey| ((grey * 0.3081 + 0.1307) * 255.0).round() as u8);
            write_idx(folder, part, 28, levels.collect(), batch.targets.iter().map(|&digit| digit as u8));
        }
    }))
}

/// Writes square grey images and their classes in MNIST's format.
fn write_idx(folder: &Path, part: &str, side: u32, levels: Vec<u8>, classes: impl Iterator<Item = u8>) {
    let header = |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_be_bytes()).collect::<Vec<_>>();
    let count = levels.len() as u32 / side.pow(2);
    let images = [header(&[0x803, count, side, side]), levels].concat();
    fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
    let labels = [header(&[0x801, count]), classes.collect()].concat();
    fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
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
