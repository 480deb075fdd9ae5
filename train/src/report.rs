//! The events and results of a run.

use crate::share::Times;
use crate::straggler::StragglerReport;

/// An event of a training run; the same on every rank, except for times.
#[derive(Debug, Clone)]
pub enum Event {
    /// The run resumes from a checkpoint.
    Resumed {
        /// The number of steps made.
        step: u64,
        /// The epoch in which it resumes, from 1.
        epoch: usize,
    },
    /// A step was made.
    Step(StepEvent),
    /// An epoch is over.
    Epoch(EpochReport),
    /// The ranks' times in the latest steps, if requested.
    Stragglers(StragglerReport),
    /// A warning for the user; each is sent once.
    Notice(String),
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepEvent {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The step in the epoch, from 1.
    pub step: usize,
    /// The number of steps of an epoch, if known.
    pub steps: Option<usize>,
    /// The mean loss of the global batch.
    pub loss: f64,
    /// The learning rate.
    pub rate: f64,
    /// The times of this rank.
    pub times: Times,
}

/// The results of an epoch, over all ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean training loss over the epoch, in nats.
    pub loss: f64,
    /// The mean loss on the held-out samples after the epoch, in nats; NaN if there are none.
    pub test_loss: f64,
    /// The fraction of held-out targets that the model predicts correctly, 0 to 1; NaN if there are none.
    pub test_accuracy: f64,
    /// Training samples per second over all ranks. (Targets, if the feed does not know its samples.)
    pub samples_per_s: f64,
    /// The share of the training time that ranks spent in all-reduces with nothing else to do, including waits for
    /// slower ranks.
    pub exposed_communication_percent: f64,
    /// The share of the training time in which all-reduces overlapped computation.
    pub hidden_communication_percent: f64,
    /// The share of the training time that ranks waited for the input pipeline.
    pub input_percent: f64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Summary {
    /// The last epoch.
    #[serde(flatten)]
    pub last: EpochReport,
    /// The number of ranks.
    pub ranks: usize,
    /// A hash of the final parameters' bytes, in hexadecimal; the same on all ranks.
    pub parameters_hash: String,
    /// Where the run stopped, if it stopped on request: the results then cover part of an epoch, and the
    /// test results are NaN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
}

/// A run that stopped on request; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stopped {
    /// The number of steps made.
    pub step: u64,
    /// Whether this step was saved, completely on disk: it is, if there is a checkpoint directory.
    pub is_saved: bool,
}
