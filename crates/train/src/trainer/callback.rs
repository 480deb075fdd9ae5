//! Code of the user's program that observes a run, and steers it.

use super::Trainer;
use crate::compare::{agree, all_where};
use crate::error::TrainError;
use crate::feed::Feed;
use crate::replica::Replica;
use crate::report::{EpochReport, Event};

/// Observes a run, and decides after every epoch how it goes on. A closure that takes an [`Event`] is one that only observes.
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
/// [`EarlyStopping`](crate::EarlyStopping) ends a run by its evaluations, and keeps the best checkpoint. [`Stop`](crate::Stop) ends it after
/// any step, at the request of any rank.
pub trait Callback {
    /// Receives an event of the run. Every rank has its own callback, which receives the events of its rank.
    fn on_event(&mut self, _event: Event) {}

    /// Decides how the run goes on after an epoch, of which [`Event::Epoch`] has been received. All ranks must decide the same, which
    /// they do if they decide by the report: it is the same on all ranks, except for times.
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
    /// As before.
    Continue,
    /// With learning rates that are multiplied by this factor, which is above 0, until the end of the run. Factors of several epochs
    /// multiply, and are saved in checkpoints.
    ScaleRate(f64),
    /// Not at all: this epoch is the last. A run that is resumed from its checkpoint begins the next epoch.
    Stop,
}

impl Flow {
    /// Returns the factor by which the run goes on, 0 if it does not.
    fn factor(self) -> Result<f64, TrainError> {
        match self {
            Self::Continue => Ok(1.0),
            Self::ScaleRate(factor) if factor > 0.0 && factor.is_finite() => Ok(factor),
            Self::ScaleRate(factor) => Err(TrainError::Setting(format!(
                "a callback scales the learning rate by `{factor}`: expected a finite factor above 0"
            ))),
            Self::Stop => Ok(0.0),
        }
    }
}

impl<R: Replica, F: Feed<Batch = R::Batch>> Trainer<'_, R, F> {
    /// Follows what the callbacks of all ranks have decided after an epoch; returns whether the run goes on.
    pub(super) fn follow(
        &mut self,
        callback: &mut impl Callback,
        report: &EpochReport,
    ) -> Result<bool, TrainError> {
        let decided = callback.on_epoch_end(report).and_then(Flow::factor);
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
