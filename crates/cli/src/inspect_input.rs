//! `unisono inspect-input`: runs an input pipeline without a model.

use std::sync::Arc;
use std::time::Instant;

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono_candle::Config;
use unisono_data::DataError;
use unisono_data::pipeline::StageReport;
use unisono_train::{Feed, Sampled, Shares, explain_bottleneck};

use super::Failure;
use super::output::Format;
use super::train::{self, InputOptions};

/// The input pipeline, as `unisono train` with the same options has it on one rank.
#[derive(Debug, ClapArgs)]
#[command(mut_arg("epochs", |option| option.help(EPOCHS)))]
pub(super) struct Args {
    #[command(flatten)]
    input: InputOptions,
    /// Output format
    #[arg(long, default_value = "table", value_parser = Format::without_csv())]
    format: Format,
}

/// The help of an option whose meaning differs from training.
const EPOCHS: &str = "Number of passes over the training samples; from the second pass on, files may be in the page cache [default: 2]";

#[derive(Debug, Serialize)]
struct Line {
    epoch: usize,
    samples: usize,
    batch_size: usize,
    samples_per_s: f64,
    stages: Vec<StageReport>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let settings = Config { epochs: args.input.epochs.unwrap_or(2), ..args.input.settings.clone() };
    settings.check().map_err(train::failure)?;
    let (dataset, kept) = settings.kept_dataset().map_err(train::failure)?;
    let is_json = args.format == Format::Json;
    if !is_json {
        dataset.notices().iter().for_each(|notice| println!("{notice}"));
        kept.iter().for_each(|report| println!("{report}"));
    }
    let dataset = Arc::new(dataset);
    let samples = dataset.train.len();
    let batch = settings.batch_size;
    let shares = Shares { rank: 0, ranks: 1, global_batch: batch, micro_batch: batch, fixed_passes: None };
    let mut feed = settings.feed(dataset, shares).map_err(train::failure)?;
    for epoch in 1..=settings.epochs {
        let samples_per_s =
            measure(&mut feed, epoch, samples).map_err(|error| train::failure(error.into()))?;
        let line = Line { epoch, samples, batch_size: batch, samples_per_s, stages: feed.stages() };
        match is_json {
            true => train::print_json("input", &line),
            false => println!("{}", table(&line)),
        }
    }
    Ok(())
}

/// Returns the samples per second of an epoch in which only the pipeline takes time.
fn measure(feed: &mut Sampled, epoch: usize, samples: usize) -> Result<f64, DataError> {
    let began = Instant::now();
    for step in feed.epoch(epoch, 0)? {
        drop(step?);
    }
    Ok(samples as f64 / began.elapsed().as_secs_f64())
}

fn table(Line { epoch, samples, batch_size, samples_per_s, stages }: &Line) -> String {
    let mut lines = vec![
        format!(
            "epoch {epoch}: {samples} samples in batches of {batch_size}; upper bound for training: {samples_per_s:.0} samples/s"
        ),
        format!(
            "{:<10}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}  work",
            "stage", "threads", "busy", "of cpu", "starved", "full", "ready"
        ),
    ];
    lines.extend(stages.iter().map(|stage| {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        let StageReport { name, threads, busy, starved, full, processor, ready, parts, .. } = stage;
        let parts: Vec<_> = parts.iter().map(|(part, share)| format!("{part} {}", percent(*share))).collect();
        let [busy, processor, starved, full] = [busy, processor, starved, full].map(|share| percent(*share));
        let row = format!(
            "{name:<10}{threads:>8}{busy:>8}{processor:>8}{starved:>9}{full:>8}{ready:>8.1}  {}",
            parts.join(", ")
        );
        row.trim_end().to_owned()
    }));
    lines.extend(explain_bottleneck(stages, None));
    lines.join("\n")
}
