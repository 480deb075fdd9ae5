//! The integration tests of training with candle.

use std::path::Path;
use std::process::ExitCode;

use unisono_candle::Config;
use unisono_data::Source;
use unisono_strategies::Strategy;
use unisono_testing::suite::{self, Module};
use unisono_train::{AdamW, Event, NamedRule, Stop, Summary, TrainError};

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

/// The largest difference between losses whose additions have different orders.
const TOLERANCE: f64 = 1e-5;

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

/// Runs the settings by their strategy, and returns the summary of each rank.
fn run(ranks: usize, settings: &Config, on_event: impl Fn(Event) + Sync) -> Vec<Result<Summary, TrainError>> {
    unisono::threads(ranks, |mut comm| match settings.strategy {
        Some(Strategy::Pipeline) => settings.pipeline(&mut comm)?.run(&on_event),
        _ => settings.trainer(&mut comm)?.run(&on_event),
    })
}

/// Returns the summary of rank 0. Fails if a rank failed, or ended with other parameters.
fn common(ended: Vec<Result<Summary, TrainError>>) -> Summary {
    let mut all: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    let first = all.remove(0);
    assert!(all.iter().all(|other| other.parameters_hash == first.parameters_hash));
    first
}

/// Runs to the end.
fn last(ranks: usize, settings: &Config) -> Summary {
    common(run(ranks, settings, |_| ()))
}

/// Runs until this step, counted over the epochs, and then requests a stop.
fn until(ranks: usize, step: usize, settings: &Config) -> Summary {
    let settings = Config { stop: Stop::default(), ..settings.clone() };
    let ended = run(ranks, &settings, |event| {
        if let Event::Step(made) = event
            && made.step + made.steps.expect("the data have a length") * (made.epoch - 1) == step
        {
            settings.stop.ask();
        }
    });
    assert!(ended.iter().flatten().all(|ended| ended.stopped.is_some()), "it stops on all ranks");
    common(ended)
}

/// Fails if a rank ends without an error, or with one that does not name the divergence.
fn assert_diverges(ranks: usize, settings: &Config) {
    let settings = Config { learning_rate: 1e6, clip_norm: None, ..settings.clone() };
    for error in run(ranks, &settings, |_| ()).into_iter().map(Result::unwrap_err) {
        let said = error.to_string();
        let causes = ["finite", "diverge", "the largest value of"];
        assert!(causes.iter().any(|cause| said.contains(cause)), "{said}");
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
