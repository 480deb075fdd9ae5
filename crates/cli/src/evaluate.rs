//! `unisono evaluate`: evaluates a saved model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono::Communicator;
use unisono_candle::{Description, Evaluated, Part, Saved};
use unisono_data::Source;
use unisono_train::metrics::{Measured, Named};
use unisono_train::{Test, TrainError};

use super::features::source;
use super::output::Format;
use super::train::CacheArgs;
use super::world::World;
use super::{Failure, train};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Checkpoint to load, or a directory of checkpoints, to load the newest
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// Data set, as for train [default: the training data set of the model]
    #[arg(long, value_parser = source)]
    data: Option<Source>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Samples to use: test (held out) or train
    #[arg(long, default_value = "test")]
    split: Part,
    /// Metrics in addition to loss and accuracy, comma-separated: top-K, f1, r2, mae, as for train
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    metrics: Vec<Named>,
    /// Output format
    #[arg(long, default_value = "table", value_parser = Format::without_csv())]
    format: Format,
    #[command(flatten)]
    world: World,
}

/// The results, which are identical on any number of ranks.
#[derive(Debug, Serialize)]
struct Line {
    /// The mean over targets, in nats.
    loss: f64,
    /// Top-1 accuracy, 0 to 1.
    accuracy: f64,
    targets: u64,
    #[serde(skip_serializing_if = "Measured::is_empty")]
    metrics: Measured,
    /// The number of damaged samples that were skipped, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_samples: Option<u64>,
    step: u64,
    parameters_hash: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.world.run_or_alone(|comm| measure(comm, args).map_err(train::failure))
}

fn measure(comm: &mut Communicator, args: &Args) -> Result<(), TrainError> {
    let saved = open(comm, &args.checkpoint, &args.cache, args.data.as_ref())?;
    let metrics: Vec<_> = args.metrics.iter().map(|Named(metric)| Arc::clone(metric)).collect();
    let evaluated = saved.evaluate(comm, args.data.as_ref(), args.split, &metrics)?;
    if comm.rank() != 0 {
        return Ok(());
    }
    let Evaluated { test: Test { tally, metrics }, skipped_samples, notice } = evaluated;
    notice.iter().for_each(|notice| eprintln!("unisono: {notice}"));
    let line = Line {
        loss: tally.mean_loss(),
        accuracy: tally.accuracy(),
        targets: tally.targets as u64,
        metrics,
        skipped_samples: Some(skipped_samples).filter(|&count| count > 0),
        step: saved.progress.step,
        parameters_hash: saved.parameters_hash()?,
    };
    match args.format == Format::Json {
        true => train::print_json("evaluated", &line),
        false => println!(
            "{} after {} steps, {}, on {} ({}): loss {:.4}{} of {} targets{}",
            saved.description.model,
            line.step,
            line.parameters_hash,
            args.data.as_ref().unwrap_or(&saved.description.source),
            args.split,
            line.loss,
            if line.accuracy.is_nan() {
                String::new()
            } else {
                format!(", accuracy {:.2} %", 100.0 * line.accuracy)
            },
            line.targets,
            train::measured(&line.metrics)
        ),
    }
    Ok(())
}

/// Opens a saved model for results on these data, or on its training data. Rank 0 prints warnings about them. Called by all ranks.
pub(super) fn open(
    comm: &mut Communicator,
    checkpoint: &Path,
    cache: &CacheArgs,
    data: Option<&Source>,
) -> Result<Saved, TrainError> {
    let mut saved = Saved::open_on_all(comm, checkpoint)?;
    saved.cache = cache.cache();
    if comm.rank() == 0 {
        warn(&saved, data);
    }
    Ok(saved)
}

fn warn(saved: &Saved, data: Option<&Source>) {
    for passed in &saved.passed_over {
        eprintln!("unisono: skipped {}: {}", passed.path.display(), passed.why);
    }
    let Description { source, schema, .. } = &saved.description;
    if schema.is_none() && data.unwrap_or(source).names_classes() {
        eprintln!(
            "unisono: `{}` was saved without names: columns are matched by position and standardised by statistics of the \
             present rows, and classes are numbered in the order of the present names",
            saved.path.display()
        );
    }
}
