//! A rank's share of a step, for any backend, and the report of the step.

use std::time::Duration;

use crate::buckets::Sums;
use crate::gradients::LossSums;

/// One rank's share of a step.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a, B> {
    /// Its micro-batches; `None` for an empty one. If there are none, the rank only takes part in the collectives.
    pub passes: &'a [Option<B>],
    /// Whether it has no more data.
    pub is_out_of_data: bool,
    /// Whether it was asked to stop. [`Sums::ranks_to_stop`] reports the number of such ranks to all ranks.
    pub asks_to_stop: bool,
    /// Whether it asks all ranks to save this step: [`Sums::ranks_to_save`].
    pub asks_to_save: bool,
}

impl<'a, B> Share<'a, B> {
    /// Returns the share of a rank that has data and is not asked to stop.
    pub fn of(passes: &'a [Option<B>]) -> Self {
        Self { passes, is_out_of_data: false, asks_to_stop: false, asks_to_save: false }
    }
}

/// The report of a step.
#[derive(Debug, Clone, Default)]
pub struct StepReport {
    /// The sums over all ranks. If all ranks were out of data, or the trainer's policy skips the step because some were, nothing was updated.
    pub sums: Sums,
    /// This rank's own sums.
    pub own: LossSums,
    /// The norm of the mean gradient, if gradients are clipped.
    pub norm: Option<f64>,
    /// The times of this rank.
    pub times: Times,
    /// The names of parameters without a gradient, which counted as zero. Each name is reported once.
    pub without_gradient: Vec<String>,
}

/// The times of one rank over some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// Waiting for the input pipeline.
    pub input: Duration,
    /// Forward and backward passes.
    pub compute: Duration,
    /// All-reduces that overlapped computation.
    pub hidden: Duration,
    /// All-reduces that the rank waited for.
    pub exposed: Duration,
    /// Clipping and the update.
    pub update: Duration,
}

impl std::ops::AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.input += other.input;
        self.compute += other.compute;
        self.hidden += other.hidden;
        self.exposed += other.exposed;
        self.update += other.update;
    }
}
