//! The settings of a run.

use std::path::PathBuf;

use crate::checkpoint::{CheckpointError, Store, When};
use crate::metrics::{self, Metrics};
use crate::rate::Rate;
use crate::{BucketSettings, OptimizerSettings, OutOfData, Stop, TrainError};

/// Everything that a [`Trainer`](super::Trainer) needs besides the model and the data. The same on all ranks.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// The number of epochs.
    pub epochs: usize,
    /// The global batch size, stored in checkpoints.
    pub global_batch: usize,
    /// The optimizer and its constants.
    pub optimizer: OptimizerSettings,
    /// The learning rate of every step.
    pub rate: Rate,
    /// The settings of buckets and their all-reduces.
    pub buckets: BucketSettings,
    /// The maximum norm of the mean gradient.
    pub clip_norm: Option<f64>,
    /// The behaviour where some ranks have no more data.
    pub out_of_data: OutOfData,
    /// The interval in steps at which to check that all replicas are identical.
    pub verify_replicas_every: Option<u64>,
    /// The interval in steps at which to compare the ranks' step times and report them as [`Event::Stragglers`].
    ///
    /// [`Event::Stragglers`]: super::Event::Stragglers
    pub straggler_every: Option<u64>,
    /// The interval in steps at which to evaluate the model on the held-out samples and report [`Event::Evaluation`](super::Event::Evaluation), in
    /// addition to the end of every epoch. During a round of [local steps](BucketSettings::local_steps), an evaluation waits for its end.
    pub evaluate_every: Option<u64>,
    /// The metrics of evaluations, besides loss and accuracy.
    pub metrics: Metrics,
    /// The condition for ending before the last epoch.
    pub early_stopping: Option<EarlyStopping>,
    /// The place and the times of checkpoints.
    pub checkpoints: Option<Checkpoints>,
    /// Requests the run to save and stop, if it is set on any rank.
    pub stop: Stop,
    /// The directory for TensorBoard files.
    pub log_directory: Option<PathBuf>,
    /// The device and the reason for its choice, as text: "on the CPU: requested".
    pub computes: Option<String>,
    /// The distribution of the model over ranks, as text, if not every rank holds the whole model: "in 2 pipeline(s) of 2: …".
    pub strategy: Option<String>,
    /// The reason why gradients have their wire format, as text, if the run has chosen it.
    pub wire_choice: Option<String>,
    /// The source of samples, as text, if it is not their original files: "samples are read from the snapshot …".
    pub input: Option<String>,
    /// A description of the run, stored in checkpoints.
    pub description: serde_json::Value,
}

impl RunSettings {
    /// Returns the settings of a run without checkpoints and logs.
    pub fn new(epochs: usize, global_batch: usize, optimizer: OptimizerSettings, rate: Rate) -> Self {
        Self {
            epochs,
            global_batch,
            optimizer,
            rate,
            buckets: BucketSettings::default(),
            clip_norm: None,
            out_of_data: OutOfData::Error,
            verify_replicas_every: None,
            straggler_every: None,
            evaluate_every: None,
            metrics: Vec::new(),
            early_stopping: None,
            checkpoints: None,
            stop: Stop::default(),
            log_directory: None,
            computes: None,
            strategy: None,
            wire_choice: None,
            input: None,
            description: serde_json::Value::Null,
        }
    }
}

/// Refuses settings that no strategy supports. `held_out` is the number of the feed's evaluation batches.
pub(crate) fn check_settings(settings: &RunSettings, held_out: usize) -> Result<(), TrainError> {
    let RunSettings { early_stopping, checkpoints, .. } = settings;
    let refuse = |why: String| Err(TrainError::Setting(why));
    let counts = [
        ("verify_replicas_every", settings.verify_replicas_every),
        ("straggler_every", settings.straggler_every),
        ("evaluate_every", settings.evaluate_every),
        ("every_steps", checkpoints.as_ref().and_then(|kept| kept.when.every_steps)),
        ("keep", checkpoints.as_ref().map(|kept| kept.keep as u64)),
        ("patience", early_stopping.map(|stopping| stopping.patience.into())),
    ];
    if let Some((name, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
        return refuse(format!("the setting {name} is `0`: it must be at least 1"));
    }
    let min_delta = early_stopping.map_or(0.0, |stopping| stopping.min_delta);
    if !(0.0..f64::INFINITY).contains(&min_delta) {
        return refuse(format!("the setting min_delta is `{min_delta}`: it must be finite, and at least 0"));
    }
    if early_stopping.is_some() && held_out == 0 {
        return refuse("early stopping needs held-out samples, and there are none".to_owned());
    }
    metrics::check(&settings.metrics, None)
}

/// A run ends after this many consecutive evaluations, during and after epochs, that were not better than the best one before them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    /// The number of evaluations, at least 1.
    pub patience: u32,
    /// The amount by which the loss on the held-out samples must decrease to count as better, in nats.
    pub min_delta: f64,
}

/// The place and the times of checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    /// The directory; created if missing.
    pub directory: PathBuf,
    /// The number of checkpoints to keep.
    pub keep: usize,
    /// Whether a new run deletes the checkpoints of another run in the directory. Otherwise it is refused.
    pub overwrites: bool,
    /// The times at which to save. A run always saves at its end, and when it is asked to stop.
    pub when: When,
}

impl Checkpoints {
    /// Returns checkpoints in this directory at the end of the run. The directory must not hold the checkpoints of another run.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), keep: 2, overwrites: false, when: When::default() }
    }

    /// Opens the directory of a run, and empties it if requested.
    pub fn open(&self, resumes: bool) -> Result<Store, CheckpointError> {
        let mut store = Store::open(&self.directory, self.keep)?;
        if self.overwrites && !resumes {
            store.clear()?;
        }
        Ok(store)
    }
}
