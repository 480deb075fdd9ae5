//! What a run tells.

use crate::share::Times;
use crate::straggler::StragglerReport;

/// What happens while a model is being trained; the same on every rank, but for times.
#[derive(Debug, Clone)]
pub enum Event {
    /// The run goes on from a checkpoint.
    Resumed {
        /// How many steps it has made.
        step: u64,
        /// The epoch in which it goes on, from 1.
        epoch: usize,
    },
    /// A step was made.
    Step(StepEvent),
    /// An epoch is over.
    Epoch(EpochReport),
    /// Where the time of the last steps went, rank by rank, if that was asked for.
    Stragglers(StragglerReport),
    /// Something that a person should know of: once.
    Notice(String),
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepEvent {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The step in the epoch, from 1.
    pub step: usize,
    /// How many steps an epoch has, if that is known.
    pub steps: Option<usize>,
    /// The mean loss of the global batch.
    pub loss: f64,
    /// The learning rate.
    pub rate: f64,
    /// Where this rank's time went.
    pub times: Times,
}

/// How an epoch went, over all ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean training loss over the epoch, in nats.
    pub loss: f64,
    /// The mean loss on the held-out samples after the epoch, in nats; not a number if there are none.
    pub test_loss: f64,
    /// The share of held-out targets that the model puts first, 0 to 1; not a number if there are none.
    pub test_accuracy: f64,
    /// Training samples a second, all ranks together. (Targets, if the feed does not know its samples.)
    pub samples_per_s: f64,
    /// The share of the training time that ranks spent in all-reduces with nothing else to do, waiting for
    /// slower ranks included.
    pub exposed_communication_percent: f64,
    /// The share of the training time in which all-reduces went on beside computation.
    pub hidden_communication_percent: f64,
    /// The share of the training time that ranks waited for the input pipeline.
    pub input_percent: f64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Summary {
    /// The last epoch.
    #[serde(flatten)]
    pub last: EpochReport,
    /// How many ranks trained.
    pub ranks: usize,
    /// A hash of the final parameters' bytes, in hexadecimal. It is the same on all ranks.
    pub parameters_hash: String,
    /// Where it stopped, if it was asked to stop and did so before its end: the figures are then of a part of an epoch, and the
    /// test figures not a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
}

/// A run that stopped because it was asked to; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stopped {
    /// How many steps it has made.
    pub step: u64,
    /// Whether this step was saved, and is whole on the disk: it is, if there is a place for checkpoints.
    pub is_saved: bool,
}
