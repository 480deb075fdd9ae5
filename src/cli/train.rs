//! `unisono train`: a model, trained by all ranks together.

use std::time::Instant;

use clap::{Args as ClapArgs, ValueEnum};
use indicatif::ProgressBar;
use serde::Serialize;
use unisono::config::share_cores;
use unisono::data::Source;
use unisono::train::model::ModelKind;
use unisono::train::{EpochReport, Event, OptimizerKind, Settings, Summary, TrainError, Trainer};
use unisono::{Choice, Communicator};

use super::world::World;
use super::{Failure, progress};

/// What is trained, on what, and how.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// digits (made by this program), idx:DIR (files in MNIST's format) or text:FILE
    #[arg(long, default_value = "digits")]
    data: Source,
    /// mlp or cnn for images, transformer for text; by default mlp or transformer
    #[arg(long)]
    model: Option<ModelKind>,
    /// How often to go through the training samples; by default what suits the model
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// How many samples each rank takes in a step; by default what suits the model
    #[arg(long, value_name = "PER_RANK")]
    batch_size: Option<usize>,
    /// sgd or adamw; by default what suits the model
    #[arg(long)]
    optimizer: Option<OptimizerKind>,
    /// The learning rate for the model's usual global batch, to which it is scaled; by default what suits
    /// the model
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// The all-reduce algorithm, auto, mpi, or rules by size such as "tree:0-8K;ring:8K-"; by default
    /// UNISONO_ALGORITHM, or else auto
    #[arg(long)]
    algorithm: Option<Choice>,
    /// Where all randomness comes from
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How progress is told
    #[arg(long, default_value = "human")]
    format: Format,
    #[command(flatten)]
    world: World,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A progress bar, and a line for each epoch
    Human,
    /// A JSON object for each epoch, and a last one
    Json,
}

impl Args {
    fn settings(&self) -> Settings {
        let model = self.model.unwrap_or_else(|| Settings::default_model(&self.data));
        let usual = Settings::new(self.data.clone(), model);
        Settings {
            epochs: self.epochs.unwrap_or(usual.epochs),
            batch_size: self.batch_size.unwrap_or(usual.batch_size),
            optimizer: self.optimizer.unwrap_or(usual.optimizer),
            learning_rate: self.learning_rate.unwrap_or(usual.learning_rate),
            seed: self.seed,
            ..usual
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let settings = args.settings();
    // SAFETY: the command line was read, and nothing has started a thread yet.
    unsafe { share_cores(args.world.local_ranks()) };
    args.world.run(|comm| on_rank(comm, args, &settings))
}

fn on_rank(comm: &mut Communicator, args: &Args, settings: &Settings) -> Result<(), Failure> {
    if let Some(choice) = args.algorithm.clone() {
        let chosen = comm.set_choice(choice);
        chosen.map_err(|error| bad_input(comm.rank(), error.to_string()))?;
    }
    train(comm, args.format, settings).map_err(|error| match error {
        TrainError::Elsewhere { .. } => Failure::SaidElsewhere,
        error if error.is_bad_input() => Failure::BadInput(error.to_string()),
        error => Failure::Error(error.to_string()),
    })
}

/// What every rank finds wrong, said by one of them.
fn bad_input(rank: usize, message: String) -> Failure {
    if rank == 0 { Failure::BadInput(message) } else { Failure::SaidElsewhere }
}

/// Trains; rank 0 tells how it goes.
fn train(comm: &mut Communicator, format: Format, settings: &Settings) -> Result<(), TrainError> {
    let (rank, ranks, transport) = (comm.rank(), comm.ranks(), comm.transport());
    let mut trainer = Trainer::new(comm, settings)?;
    if rank != 0 {
        return trainer.run(|_| ()).map(drop);
    }
    if format == Format::Human {
        let ran = trainer.all_reduce();
        println!("{}", opening(&trainer, settings, ranks));
        println!("{ranks} ranks over {transport}, all-reduce by {}: {}", ran.algorithm, ran.why);
    }
    let started = Instant::now();
    let mut teller = Teller { format, epochs: settings.epochs, bar: format.bar() };
    let summary = trainer.run(|event| teller.tell(&event))?;
    teller.done(&summary, started.elapsed().as_secs_f64());
    Ok(())
}

fn opening(trainer: &Trainer<'_>, settings: &Settings, ranks: usize) -> String {
    let Settings { source, model, batch_size, optimizer, .. } = settings;
    format!(
        "{model} of {} parameters on {source}, {} samples in batches of {ranks} x {batch_size}; {optimizer} at up to {:.3e}",
        trainer.parameter_count(),
        trainer.sample_count(),
        trainer.peak_rate()
    )
}

impl Format {
    fn bar(self) -> ProgressBar {
        match self {
            Self::Human => progress::bar(),
            Self::Json => ProgressBar::hidden(),
        }
    }
}

/// Tells a person or a program how it goes.
struct Teller {
    format: Format,
    epochs: usize,
    bar: ProgressBar,
}

/// A line of JSON: what happened, and the figures.
#[derive(Serialize)]
struct Line<'a, T> {
    event: &'static str,
    #[serde(flatten)]
    figures: &'a T,
}

impl Teller {
    fn tell(&mut self, event: &Event) {
        match event {
            Event::Step { epoch, step, steps, loss } => {
                self.bar.set_length(*steps as u64);
                self.bar.set_prefix(format!("epoch {epoch:>2}/{}", self.epochs));
                self.bar.set_message(format!("loss {loss:.4}"));
                self.bar.set_position(*step as u64);
            }
            Event::Epoch(report) => {
                self.bar.reset();
                match self.format {
                    Format::Human => self.bar.suspend(|| println!("{}", self.epoch(report))),
                    Format::Json => print_json("epoch", report),
                }
            }
        }
    }

    fn epoch(&self, report: &EpochReport) -> String {
        format!(
            "epoch {:>2}/{}  loss {:.4}  test loss {:.4}  test accuracy {:>6.2} %  {:>8.0} samples/s  communication {:>4.1} %",
            report.epoch,
            self.epochs,
            report.loss,
            report.test_loss,
            100.0 * report.test_accuracy,
            report.samples_per_s,
            report.exposed_communication_percent
        )
    }

    fn done(&self, summary: &Summary, seconds: f64) {
        self.bar.finish_and_clear();
        match self.format {
            Format::Json => print_json("done", summary),
            Format::Human => println!(
                "trained in {seconds:.1} s; all {} ranks hold the same parameters, {}",
                summary.ranks, summary.parameters_hash
            ),
        }
    }
}

fn print_json<T: Serialize>(event: &'static str, figures: &T) {
    println!("{}", serde_json::to_string(&Line { event, figures }).expect("figures are plain"));
}
