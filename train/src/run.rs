//! What a run is told.

use std::path::PathBuf;

use crate::buckets::BucketSettings;
use crate::checkpoint::When;
use crate::feed::OutOfData;
use crate::optimizer::OptimizerSettings;
use crate::rate::Rate;
use crate::stop::Stop;

/// Everything that a [`Trainer`](super::Trainer) has to know besides the model and the data; the same on all ranks.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// How often the training samples are gone through.
    pub epochs: usize,
    /// How many samples all ranks take together in a step: for checkpoints.
    pub global_batch: usize,
    /// How parameters are updated.
    pub optimizer: OptimizerSettings,
    /// The learning rate of every step.
    pub rate: Rate,
    /// How gradients travel.
    pub buckets: BucketSettings,
    /// The greatest norm that the mean gradient may have.
    pub clip_norm: Option<f64>,
    /// What happens when some ranks have no more data.
    pub out_of_data: OutOfData,
    /// After how many steps, again and again, all replicas are held against each other.
    pub verify_replicas_every: Option<u64>,
    /// After how many steps, again and again, the ranks' times are compared, and told as [`Event::Stragglers`].
    ///
    /// [`Event::Stragglers`]: super::Event::Stragglers
    pub straggler_every: Option<u64>,
    /// Where and when checkpoints are saved.
    pub checkpoints: Option<Checkpoints>,
    /// Asks the run to save and end, on whichever ranks it is set.
    pub stop: Stop,
    /// Where files for TensorBoard are written.
    pub log_directory: Option<PathBuf>,
    /// Where a trace of all ranks is written, for `chrome://tracing` or Perfetto.
    pub trace: Option<PathBuf>,
    /// Where the model computes, and why, for people: "on the CPU: asked for".
    pub computes: Option<String>,
    /// What the run is, in a checkpoint.
    pub description: serde_json::Value,
}

impl RunSettings {
    /// A run without checkpoints and logs.
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
            checkpoints: None,
            stop: Stop::default(),
            log_directory: None,
            trace: None,
            computes: None,
            description: serde_json::Value::Null,
        }
    }
}

/// Where and when checkpoints are saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoints {
    /// The directory, which is made if it is not there.
    pub directory: PathBuf,
    /// How many are kept.
    pub keep: usize,
    /// Whether a run that begins removes the checkpoints of another run that are there. If not, it is refused.
    pub overwrites: bool,
    /// When they are saved; at the end of a run, and when it is asked to stop, in any case.
    pub when: When,
}
