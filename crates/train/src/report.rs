//! The events and results of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::metrics::Measured;
use crate::{StragglerReport, Test, Times};
use unisono_data::pipeline::StageReport;

/// An event of a training run. It is the same on every rank, except for times and input stages. Notices of damaged samples and of skipped checkpoints
/// are sent on rank 0 only.
#[derive(Debug, Clone)]
pub enum Event {
    /// The run resumes from a checkpoint.
    Resumed {
        /// The number of completed steps.
        step: u64,
        /// The epoch in which it resumes, from 1.
        epoch: usize,
    },
    /// A step was made.
    Step(StepEvent),
    /// The model was evaluated during an epoch, if requested.
    Evaluation(Evaluation),
    /// An epoch is over, and the model was evaluated.
    Epoch(EpochReport),
    /// The ranks' times in the latest steps, if requested.
    Stragglers(StragglerReport),
    /// The work of the workers of parameter servers in an epoch. This event precedes the results of the epoch.
    Workers(WorkersReport),
    /// A warning for the user; each is sent once.
    Notice(String),
}

impl Event {
    /// Returns the notice of a parameter without a gradient.
    #[doc(hidden)]
    pub fn without_gradient(name: &str) -> Self {
        Self::Notice(format!("{name} has no gradient, which counts as zero: the loss does not depend on it"))
    }
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
    /// The number of targets of the global batch.
    pub targets: f64,
    /// The times of this rank.
    pub times: Times,
}

/// The results on the held-out samples during an epoch, over all ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The number of completed steps, in all epochs.
    pub step: u64,
    /// The mean loss, in nats; NaN if there are no held-out samples.
    pub test_loss: f64,
    /// The fraction of targets that the model predicts correctly, 0 to 1; NaN if there are none, and for a regression.
    pub test_accuracy: f64,
    /// The values of the run's [metrics](crate::metrics).
    #[serde(skip_serializing_if = "Measured::is_empty")]
    pub metrics: Measured,
}

impl Test {
    /// Returns the evaluation of an epoch, after this many steps of the run.
    pub fn evaluation(&self, epoch: usize, step: u64) -> Evaluation {
        let Self { tally, metrics } = self;
        let (test_loss, test_accuracy) = (tally.mean_loss(), tally.accuracy());
        Evaluation { epoch, step, test_loss, test_accuracy, metrics: metrics.clone() }
    }
}

/// Reads a number, or the null that JSON has in place of a NaN or an infinity.
pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The results of an epoch, over all ranks.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct EpochReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean training loss over the epoch, in nats.
    pub loss: f64,
    /// The mean loss on the held-out samples after the epoch, in nats; NaN if there are none.
    pub test_loss: f64,
    /// The fraction of held-out targets that the model predicts correctly, 0 to 1; NaN if there are none, and for a regression.
    pub test_accuracy: f64,
    /// The number of times that a damaged sample was [skipped](unisono_data::OnBadSample), in the epoch and its evaluations. A sample may count
    /// several times.
    #[serde(skip_serializing_if = "is_zero")]
    pub skipped_samples: u64,
    /// The values of the run's [metrics](crate::metrics) after the epoch.
    #[serde(skip_serializing_if = "Measured::is_empty")]
    pub metrics: Measured,
    /// Training samples per second over all ranks. If the feed does not know its samples, targets are counted instead.
    pub samples_per_s: f64,
    /// The share of the training time that ranks waited in all-reduces, including waits for slower ranks.
    pub exposed_communication_percent: f64,
    /// The share of the training time in which all-reduces overlapped computation.
    pub hidden_communication_percent: f64,
    /// The share of the training time that ranks waited for the input pipeline.
    pub input_percent: f64,
    /// The work of the stages of this rank's input pipeline, if its feed measures it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input_stages: Vec<StageReport>,
}

/// The work of the workers of parameter servers in an epoch, or in its part since the run was resumed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct WorkersReport {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The remaining workers.
    pub workers: Vec<WorkerReport>,
    /// A histogram of staleness. The keys are numbers of updates missed between pull and push, the values are numbers of gradients.
    pub staleness: BTreeMap<u64, u64>,
}

impl WorkersReport {
    /// Returns the number of updates that a gradient missed, on average.
    pub fn mean_missed(&self) -> f64 {
        let missed: u64 = self.staleness.iter().map(|(missed, gradients)| missed * gradients).sum();
        missed as f64 / self.staleness.values().sum::<u64>().max(1) as f64
    }

    /// Returns the maximum number of updates that a gradient missed.
    pub fn most_missed(&self) -> u64 {
        self.staleness.keys().max().copied().unwrap_or(0)
    }
}

/// A worker of parameter servers in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct WorkerReport {
    /// Its rank.
    pub rank: usize,
    /// The shares of steps that it has computed.
    pub shares: u64,
    /// Its targets (images, or characters of a text) per second.
    pub targets_per_s: f64,
    /// The share of its time that it waited for servers.
    pub waits_percent: f64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Summary {
    /// The last epoch.
    #[serde(flatten)]
    pub last: EpochReport,
    /// The number of ranks.
    pub ranks: usize,
    /// A hash of the final parameters' bytes, in hexadecimal. It covers the whole model, and is the same on all ranks.
    pub parameters_hash: String,
    /// The resident memory of a rank at the end, in bytes, averaged over ranks, where the system reports it. Memory that ranks share counts in equal
    /// parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The point at which the run stopped on request, if it did. The results then cover part of an epoch, and the test results are NaN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// The point at which the run ended early, if [evaluations](crate::EarlyStopping) no longer improved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_early: Option<EndedEarly>,
}

/// The best evaluation of a run.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Best {
    /// Its mean loss on the held-out samples. It is NaN if the loss of every evaluation was NaN.
    #[serde(deserialize_with = "null_is_nan")]
    pub test_loss: f64,
    /// The number of steps made before it.
    pub step: u64,
    /// The number of later evaluations.
    pub evaluations_since: u32,
}

impl Best {
    /// Returns the best evaluation after another one. The new one is better if its loss is lower by more than `min_delta`.
    pub(crate) fn after(best: Option<Self>, test_loss: f64, step: u64, min_delta: f64) -> Self {
        let is_kept = |best: &Self| {
            let is_better = test_loss < best.test_loss - min_delta;
            !is_better && (!best.test_loss.is_nan() || test_loss.is_nan())
        };
        match best.filter(is_kept) {
            Some(best) => Self { evaluations_since: best.evaluations_since + 1, ..best },
            None => Self { test_loss, step, evaluations_since: 0 },
        }
    }
}

/// A run that ended because evaluations no longer improved. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct EndedEarly {
    /// The number of completed steps.
    pub step: u64,
    /// The best evaluation.
    pub best: Best,
}

/// A run that stopped on request. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Stopped {
    /// The number of completed steps.
    pub step: u64,
    /// Whether the step is saved completely on disk. It is, if there is a checkpoint directory.
    pub is_saved: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_evaluation_is_saved_and_any_number_is_better() {
        let best = Best::after(None, f64::NAN, 3, 0.0);
        let read: Best = serde_json::from_str(&serde_json::to_string(&best).unwrap()).unwrap();
        assert!(read.test_loss.is_nan() && read.step == 3);
        let again = Best::after(Some(read), f64::NAN, 6, 0.0);
        assert_eq!((again.step, again.evaluations_since), (3, 1));
        let better = Best::after(Some(again), 7.0, 9, 0.5);
        assert_eq!(better, Best { test_loss: 7.0, step: 9, evaluations_since: 0 });
        assert_eq!(Best::after(Some(better), f64::NAN, 12, 0.5).evaluations_since, 1);
    }
}
