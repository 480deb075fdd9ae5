//! A saved model, for evaluation or prediction without training.
//!
//! Only the checkpoint is needed, because it describes the model and its training data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use unisono_collectives::named;

use crate::config::text;
use crate::model::{self, ModelKind, Placed, Sequence};
use crate::network::{Network, Parameters};
use unisono::Communicator;
use unisono_data::{Cache, Column, Dataset, Depth, Kind, OnBadSample, Schema, Source, Split, Threads};
use unisono_train::checkpoint::{self, Loaded, PassedOver, Tensor};
use unisono_train::internals::{AVERAGE, Damage, broadcast, hash_with_buffers, moment_name, scatter};
use unisono_train::metrics::Metric;
use unisono_train::{Feed as _, Progress, Replica, Sampled, Shares, Test, TrainError, agree, evaluate};

mod input;
mod predictor;

pub use predictor::{Guess, Predictor, Sampling};

/// A saved model and its description.
///
/// ```no_run
/// use unisono_candle::{Description, Part, Saved};
///
/// let saved = Saved::open("checkpoints".as_ref())?;
/// let Description { model, source, .. } = &saved.description;
/// println!("{model} trained on {source} for {} steps", saved.progress.step);
/// let on_rank = |mut comm| saved.evaluate(&mut comm, None, Part::Test, &[]);
/// let evaluated = unisono::threads(2, on_rank).swap_remove(0)?;
/// println!("{:.2} % are right", 100.0 * evaluated.test.tally.accuracy());
/// # Ok::<(), unisono_train::TrainError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Saved {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// The progress of the run; its description holds all settings that were saved.
    pub progress: Progress,
    /// The settings that determine the model and its data.
    pub description: Description,
    /// The parameters.
    pub parameters: Vec<Tensor>,
    /// The local cache for data sets on servers. The default location, unless it is set.
    pub cache: Cache,
    /// Newer checkpoints that are damaged. Empty except on the rank that read them.
    pub passed_over: Vec<PassedOver>,
}

/// The part of a run's [`Config`](super::Config) in its checkpoints that determines the model.
#[derive(Debug, Clone, Deserialize)]
pub struct Description {
    /// The data set that the model was trained on.
    #[serde(rename = "data", with = "text")]
    pub source: Source,
    /// The kind of samples, which determines the model's input and output.
    pub kind: Kind,
    /// The names of classes and columns; `None` in checkpoints from before names were stored.
    pub schema: Option<Schema>,
    /// The kind of model.
    #[serde(with = "text")]
    pub model: ModelKind,
    /// The widths of the MLP's hidden layers, or of the blocks of the residual network or the transformer. `None` is the default.
    pub hidden: Option<Vec<usize>>,
    /// The dropout in training, if there was any.
    pub dropout: Option<f64>,
    /// The random seed of the run.
    pub seed: u64,
    /// The treatment of damaged samples, if they may be skipped. Older checkpoints have no entry for it.
    #[serde(rename = "damaged samples", default)]
    damaged: Option<String>,
}

impl Description {
    /// Returns the column that a regression predicts, or `None` for a classification.
    fn target(&self) -> Option<&Column> {
        self.schema.as_ref()?.target.as_ref()
    }
}

/// The results of [`Saved::evaluate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// The losses and the metrics.
    pub test: Test,
    /// The number of damaged samples that were skipped.
    pub skipped_samples: u64,
    /// A notice that names these samples; only on rank 0.
    pub notice: Option<String>,
}

named! {
    /// The part of a data set.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Part: "part of a data set" {
        /// The held-out samples.
        Test = "test",
        /// The training samples, without augmentation.
        Train = "train",
    }
}

impl Part {
    /// Returns this part of a data set.
    pub fn of(self, dataset: &Dataset) -> &Arc<dyn Split> {
        match self {
            Self::Test => &dataset.test,
            Self::Train => &dataset.train,
        }
    }
}

impl Saved {
    /// Reads a checkpoint, or the newest complete one in a directory. Parameters are [averages](unisono_train::optimizer::Averaged) if the checkpoint
    /// has them.
    ///
    /// # Errors
    /// [`TrainError::Setting`] if there is no checkpoint, or it does not describe its model. [`TrainError::Checkpoint`] if it is damaged.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let Some(Loaded { mut checkpoint, path, passed_over }) = checkpoint::load_newest(path)? else {
            let expected = "expected a directory that `unisono train --checkpoint-dir` has saved to";
            return Err(TrainError::Setting(format!("no checkpoint in `{}`: {expected}", path.display())));
        };
        for Tensor { name, values, .. } in &mut checkpoint.parameters {
            let average = moment_name(name, AVERAGE);
            let saved = checkpoint.optimizer.iter_mut().find(|tensor| tensor.name == average);
            if let Some(average) = saved.filter(|average| average.values.len() == values.len()) {
                *values = std::mem::take(&mut average.values);
            }
        }
        Self::new(path, checkpoint.state, checkpoint.parameters, passed_over)
    }

    /// As [`open`](Self::open), but only rank 0 reads, and broadcasts the result. All ranks have the same checkpoint even while newer ones are being
    /// saved. Called by all ranks.
    ///
    /// # Errors
    /// As [`open`](Self::open), on all ranks. Errors of the collectives.
    pub fn open_on_all(comm: &mut Communicator, path: &Path) -> Result<Self, TrainError> {
        let read = (comm.rank() == 0).then(|| comm.quiet("reading a checkpoint", |_| Self::open(path)));
        let read = agree(comm, read.transpose())?;
        let header = read.as_ref().map(|saved| (&saved.path, &saved.progress));
        let header: Option<(_, _)> = broadcast(comm, &header)?;
        let (path, progress) = header.expect("rank 0 has read it");
        let (own, passed_over) =
            read.map_or_else(Default::default, |saved| (saved.parameters, saved.passed_over));
        let (parameters, _) = scatter(comm, own, |_| true)?;
        Self::new(path, progress, parameters, passed_over)
    }

    fn new(
        path: PathBuf,
        progress: Progress,
        parameters: Vec<Tensor>,
        passed_over: Vec<PassedOver>,
    ) -> Result<Self, TrainError> {
        let description = Description::deserialize(&progress.description).map_err(|why| {
            let (path, expected) = (path.display(), "expected what `unisono train` saves");
            TrainError::Setting(format!("`{path}` does not name its model: {why}; {expected}"))
        })?;
        Ok(Self { path, progress, description, parameters, cache: Cache::default(), passed_over })
    }

    /// Returns the model as a replica for the trainer, with the saved values.
    ///
    /// # Errors
    /// [`TrainError`] if the model cannot be built, or the values do not fit it.
    pub fn replica(&self) -> Result<impl Replica<Batch = Placed> + use<>, TrainError> {
        let (network, parameters) = self.built()?;
        Ok(model::replica(network, &parameters))
    }

    /// Returns a predictor with this model.
    ///
    /// # Errors
    /// As [`replica`](Self::replica).
    pub fn predictor(&self) -> Result<Predictor, TrainError> {
        Ok(Predictor { network: self.built()?.0, description: self.description.clone() })
    }

    /// Returns the model with the saved values.
    fn built(&self) -> Result<(Sequence, Parameters), TrainError> {
        let Description { model, hidden, dropout, kind, seed, .. } = &self.description;
        let (parameters, dropout) = (Parameters::new(*seed), dropout.unwrap_or(0.0));
        let network = model::build(*model, hidden.as_deref(), dropout, kind, &parameters)?;
        // This replica shares its values with the model, and serves only to overwrite them.
        let mut values = Network::new(&parameters, |(): &()| candle_core::bail!("it has no loss"));
        unisono_train::load(&mut values, &self.parameters).map_err(|error| match error {
            TrainError::Setting(why) => {
                let path = self.path.display();
                TrainError::Setting(format!("`{path}` does not hold the {model} that it describes: {why}"))
            }
            error => error,
        })?;
        Ok((network, parameters))
    }

    /// Converts a target in a batch to a value in the units of a regression's target column. Returns `None` for a classification.
    pub fn target_value(&self, target: u32) -> Option<f32> {
        Some(self.description.target()?.original(f32::from_bits(target)) as f32)
    }

    /// Returns the name of a class, or its number if it has no name.
    pub fn class_name(&self, class: u32) -> String {
        self.description.schema.as_ref().map_or_else(|| class.to_string(), |schema| schema.class(class))
    }

    /// Returns a hash of the parameters' bytes, as printed at the end of a run. If they are averages, the hash is that of the averages, and differs
    /// from the printed one.
    ///
    /// # Errors
    /// As [`replica`](Self::replica).
    pub fn parameters_hash(&self) -> Result<String, TrainError> {
        Ok(format!("{:016x}", hash_with_buffers(&mut self.replica()?)?))
    }

    /// Evaluates the model on a part of a data set, by default its training data set, with these metrics. The results are identical to the last bit
    /// on any number of ranks. Called by all ranks, each with the same model.
    ///
    /// # Errors
    /// [`TrainError`] of the data, the model or the collectives. See [`dataset`](Self::dataset).
    pub fn evaluate(
        &self,
        comm: &mut Communicator,
        source: Option<&Source>,
        part: Part,
        metrics: &[Arc<dyn Metric>],
    ) -> Result<Evaluated, TrainError> {
        let load = |_: &mut Communicator| {
            // Damaged samples of the run's own data are treated as in the run.
            let damaged = self.description.damaged.as_deref().filter(|_| source.is_none());
            self.load(source, damaged.map(str::parse::<OnBadSample>).transpose()?.unwrap_or_default())
        };
        let dataset = comm.quiet("loading the data set", load);
        let dataset = dataset.and_then(|dataset| self.measurable(dataset, source, part));
        let prepared = dataset.and_then(|dataset| Ok((dataset, self.replica()?)));
        let (mut dataset, mut replica) = agree(comm, prepared)?;
        if part == Part::Train {
            // A feed evaluates on the held-out part.
            std::mem::swap(&mut dataset.test, &mut dataset.train);
        }
        // There is no training, so batch sizes do not matter.
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let shares = Shares { rank, ranks, global_batch: ranks, micro_batch: 1, fixed_passes: None };
        let feed = Sampled::new(Arc::new(dataset), self.description.seed, shares, Threads::Auto, Depth::Auto);
        let mut feed = feed.placed(None);
        let test = evaluate(comm, &mut replica, &mut feed, metrics)?;
        let (skipped_samples, notice) = Damage::default().notice(comm, &feed.skipped(0))?;
        Ok(Evaluated { test, skipped_samples, notice })
    }
}
