//! `unisono predict`: predicts the classes or the values of samples, or continues a text, with a saved model.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;
use unisono::Communicator;
use unisono_candle::{Guess, Part, Predictor, Sampling, Saved};
use unisono_data::{Dataset, Source};
use unisono_train::{TrainError, agree};

use super::Failure;
use super::evaluate::open;
use super::features::source;
use super::output::{self, Format};
use super::train::{CacheArgs, failure};
use super::values::{OneOrAll, one_or_all};
use super::world::World;

#[derive(Debug, ClapArgs)]
#[command(mut_arg("data_cache", |option| option.conflicts_with_all(["image", "prompt"])))]
pub(super) struct Args {
    /// Checkpoint to load, or a directory of checkpoints, to load the newest
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    cache: CacheArgs,
    /// Samples to predict: test (held out), train, or all, the held-out ones first [default: test, or all if no samples are held out or a table has no
    /// target column]
    #[arg(long, value_parser = one_or_all(Part::ALL, Part::name), conflicts_with_all = ["image", "prompt"])]
    split: Option<OneOrAll<Part>>,
    /// Maximum number of samples to predict [default: no limit]
    #[arg(long, value_name = "N", conflicts_with_all = ["image", "prompt"])]
    limit: Option<usize>,
    /// Number of characters to generate
    #[arg(long, value_name = "N", conflicts_with_all = ["data", "image"], default_value_t = 200)]
    length: usize,
    /// Sampling temperature: 1 samples from the distribution of the model, 0 selects the most probable character
    #[arg(long, value_name = "T", conflicts_with_all = ["data", "image"], default_value_t = 1.0)]
    temperature: f64,
    /// Random seed for sampling
    #[arg(long, value_name = "N", conflicts_with_all = ["data", "image"], default_value_t = 0)]
    seed: u64,
    /// Output format
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    world: World,
}

#[derive(Debug, ClapArgs)]
#[group(required = true, multiple = false)]
struct Asked {
    /// Data set whose samples to predict, as for train (image and table models)
    #[arg(long, value_parser = source)]
    data: Option<Source>,
    /// PNG, JPEG, WebP, BMP or GIF files to classify (image models)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    image: Option<Vec<PathBuf>>,
    /// Text to continue (transformer)
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
}

/// Escapes the control characters of a name, which a terminal would interpret.
fn shown(name: &str) -> String {
    let escaped =
        |sign: char| if sign.is_control() { sign.escape_default().to_string() } else { sign.into() };
    name.chars().map(escaped).collect()
}

#[derive(Serialize)]
struct Sample {
    split: &'static str,
    index: usize,
    class: u32,
    probability: f64,
    /// `None` if the data have no labels.
    label: Option<u32>,
    class_name: String,
    label_name: Option<String>,
}

impl Sample {
    fn text(&self) -> String {
        let Self { split, index, class, probability, label, class_name, label_name } = self;
        let (percent, class_name) = (100.0 * probability, shown(class_name));
        let text = format!("{split:>5} {index:>7}  class {class_name:>3}  {percent:>6.2} %");
        let Some(name) = label_name else { return text };
        let mark = if Some(*class) == *label { "" } else { "  wrong" };
        format!("{text}  label {:>3}{mark}", shown(name))
    }
}

/// The value predicted for a row of a table.
#[derive(Serialize)]
struct Row {
    split: &'static str,
    index: usize,
    column: String,
    value: f32,
    /// `None` if the data have no such column.
    target: Option<f32>,
}

impl Row {
    fn text(&self) -> String {
        let Self { split, index, column, value, target } = self;
        let target = target.map_or_else(String::new, |target| format!("  target {target}"));
        format!("{split:>5} {index:>7}  {} {value}{target}", shown(column))
    }
}

#[derive(Serialize)]
struct Image {
    image: String,
    class: u32,
    probability: f64,
    class_name: String,
}

#[derive(Serialize)]
struct Continuation<'a> {
    prompt: &'a str,
    continuation: String,
}

/// The output: rows that are written as they are predicted.
struct Rows {
    format: Format,
    are_begun: bool,
}

impl Rows {
    fn write<T: Serialize>(&mut self, row: &T, text: impl FnOnce(&T) -> String) {
        match self.format {
            Format::Table => print!("{}\n", text(row)),
            Format::Json => output::row(row),
            Format::Csv => output::csv(&[row], !self.are_begun),
        }
        self.are_begun = true;
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.world.run_or_alone(|comm| answer(comm, args).map_err(failure))
}

/// Computes this rank's share of the predictions. Rank 0 writes the results.
fn answer(comm: &mut Communicator, args: &Args) -> Result<(), TrainError> {
    let rows = &mut Rows { format: args.format, are_begun: false };
    let saved = open(comm, &args.checkpoint, &args.cache, args.asked.data.as_ref())?;
    let predictor = agree(comm, saved.predictor())?;
    let Asked { data, image, prompt } = &args.asked;
    if let Some(source) = data {
        return predict(comm, (&saved, &predictor), source, args, rows);
    }
    if let Some(files) = image {
        let mut names = files.iter().map(|file| file.display().to_string());
        let images = agree(comm, saved.images(files))?;
        predictor.predict_shared(comm, images, files.len(), |guess, _| {
            let Guess::Class { class, probability } = guess else { unreachable!("images have classes") };
            let image = names.next().expect("each guess is of a file");
            let row = Image { image, class, probability, class_name: saved.class_name(class) };
            rows.write(&row, |Image { image, probability, class_name, .. }| {
                let (image, class_name) = (shown(image), shown(class_name));
                format!("{image}  class {class_name:>3}  {:>6.2} %", 100.0 * probability)
            });
        })?;
    }
    if let Some(prompt) = prompt {
        let sampling = Sampling { temperature: args.temperature, seed: args.seed };
        // Each character depends on the previous one.
        let continued = |_: &mut Communicator| predictor.continued(prompt, args.length, sampling);
        let own = (comm.rank() == 0).then(|| comm.quiet("continuing the prompt", continued));
        if let Some(continuation) = agree(comm, own.transpose())? {
            rows.write(&Continuation { prompt, continuation }, |row| {
                row.prompt.to_owned() + &row.continuation
            });
        }
    }
    Ok(())
}

fn predict(
    comm: &mut Communicator,
    (saved, predictor): (&Saved, &Predictor),
    source: &Source,
    args: &Args,
    rows: &mut Rows,
) -> Result<(), TrainError> {
    let dataset = comm.quiet("loading the data set", |_| saved.dataset(Some(source)));
    let asked = OneOrAll::distinct(args.split.as_slice());
    let dataset = dataset.and_then(|dataset| match asked[..] {
        [Part::Test] if dataset.test.is_empty() => {
            Err(TrainError::Setting(format!("{source} has no held-out samples: use --split all")))
        }
        _ => Ok(dataset),
    });
    let dataset = agree(comm, dataset)?;
    let is_split = !dataset.test.is_empty();
    let parts = match &asked[..] {
        [] if is_split => &[Part::Test],
        [] => &Part::ALL[..],
        asked => asked,
    };
    let has_targets = dataset.schema.label.is_some() || !source.is_table();
    let mut left = args.limit.unwrap_or(usize::MAX);
    let Dataset { test, train, schema, .. } = dataset;
    let column = schema.target.map(|target| target.name).unwrap_or_default();
    for (part, chosen) in [(Part::Test, test), (Part::Train, train)] {
        if !parts.contains(&part) {
            continue;
        }
        let count = chosen.len().min(left);
        left -= count;
        let mut indices = 0..;
        let split = if is_split { part.name() } else { "all" };
        predictor.predict_shared(comm, chosen, count, |guess, target| {
            let index = indices.next().expect("there is no last");
            let target = has_targets.then_some(target);
            match guess {
                Guess::Class { class, probability } => {
                    let class_name = saved.class_name(class);
                    let label_name = target.map(|label| saved.class_name(label));
                    let label = target;
                    let row = Sample { split, index, class, probability, label, class_name, label_name };
                    rows.write(&row, Sample::text);
                }
                Guess::Value(value) => {
                    let target = target.and_then(|target| saved.target_value(target));
                    let column = column.clone();
                    rows.write(&Row { split, index, column, value, target }, Row::text);
                }
            }
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_names_are_escaped() {
        let (class_name, label_name) = ("é\u{1b}[2J".to_owned(), Some("a\nb".to_owned()));
        let row = Sample {
            split: "test",
            index: 3,
            class: 0,
            probability: 0.5,
            label: Some(1),
            class_name,
            label_name,
        };
        assert_eq!(row.text(), " test       3  class é\\u{1b}[2J   50.00 %  label a\\nb  wrong");
    }
}
