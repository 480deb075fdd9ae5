//! Code of the user's program that observes and controls a run.

use super::Trainer;
use crate::compare::all_where;
use crate::{EpochReport, Event, Feed, Replica, TrainError, agree};

/// Observes a run, and decides after every epoch whether and how it continues. A closure that takes an [`Event`] only observes.
///
/// ```
/// use unisono_train::{Callback, EpochReport, Flow, TrainError};
///
/// /// Halves the learning rate after an epoch that was not better, and ends the run once it is accurate.
/// struct Plateau {
///     least: f64,
/// }
///
/// impl Callback for Plateau {
///     fn on_epoch_end(&mut self, report: &EpochReport) -> Result<Flow, TrainError> {
///         if report.test_accuracy > 0.99 {
///             return Ok(Flow::Stop);
///         }
///         let is_better = report.test_loss < self.least;
///         self.least = self.least.min(report.test_loss);
///         Ok(if is_better { Flow::Continue } else { Flow::ScaleRate(0.5) })
///     }
/// }
/// ```
///
/// [`EarlyStopping`](crate::EarlyStopping) ends a run by its evaluations, and keeps the best checkpoint. [`Stop`](crate::Stop) ends it after any
/// step, when any rank requests it.
pub trait Callback {
    /// Receives an event of the run. Every rank has its own callback, which receives the events of its rank.
    fn on_event(&mut self, _event: Event) {}

    /// Decides how the run continues after an epoch, whose [`Event::Epoch`] has been received. All ranks must make the same decision. A decision by
    /// the report is safe, because the report is the same on all ranks, except for times.
    ///
    /// # Errors
    /// Any error ends the run on all ranks.
    fn on_epoch_end(&mut self, _report: &EpochReport) -> Result<Flow, TrainError> {
        Ok(Flow::Continue)
    }
}

impl<F: FnMut(Event)> Callback for F {
    fn on_event(&mut self, event: Event) {
        self(event);
    }
}

/// The continuation of a run after an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Flow {
    /// The run continues unchanged.
    Continue,
    /// The run continues with learning rates multiplied by this factor, which is above 0. Factors of several epochs multiply, and are saved in
    /// checkpoints. Their product must stay finite and above 0.
    ScaleRate(f64),
    /// The run ends with this epoch. A run that is resumed from its checkpoint begins the next epoch.
    Stop,
}

impl Flow {
    /// Returns the factor for the learning rates of the remaining run, or 0 if the run ends. `before` is the product of earlier factors.
    fn factor(self, before: f64) -> Result<f64, TrainError> {
        let factor = match self {
            Self::Continue => return Ok(1.0),
            Self::ScaleRate(factor) => factor,
            Self::Stop => return Ok(0.0),
        };
        for (who, factor) in [("a callback scales", factor), ("callbacks together scale", before * factor)] {
            if factor <= 0.0 || !factor.is_finite() {
                return Err(TrainError::Setting(format!(
                    "{who} the learning rate by `{factor}`: expected a finite factor above 0"
                )));
            }
        }
        Ok(factor)
    }
}

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Applies the common decision of the callbacks of all ranks after an epoch. Returns whether the run continues.
    pub(super) fn follow(
        &mut self,
        callback: &mut dyn Callback,
        report: &EpochReport,
    ) -> Result<bool, TrainError> {
        let before = self.state.progress.rate_factor;
        let decided = callback.on_epoch_end(report).and_then(|flow| flow.factor(before));
        let factor = agree(self.world.all, decided)?;
        let (mut first, epoch) = ([factor], report.epoch);
        self.world.all.broadcast(&mut first, 0)?;
        let ranks = all_where(self.world.all, first != [factor])?;
        if !ranks.is_empty() {
            return Err(TrainError::CallbacksDiffer { ranks, epoch });
        }
        if factor > 0.0 {
            self.state.progress.rate_factor *= factor;
        }
        Ok(factor > 0.0)
    }
}
