//! The state of a run apart from its model and its data.

use std::time::Instant;

use crate::checkpoint::{CheckpointError, Store};
use crate::compare::agree;
use crate::error::TrainError;
use crate::log::Log;
use crate::metrics::Test;
use crate::report::{Best, EndedEarly, EpochReport, Event, Stopped, Summary};
use crate::resume::{Progress, Resumed};
use crate::run::RunSettings;
use unisono::{Communicator, Rank};

/// The rank that saves checkpoints.
pub(crate) const SAVES: Rank = 0;

/// The position of a run, its checkpoints, its log and its last evaluation. Used by a trainer, and by the coordinator of parameter servers.
#[derive(Debug)]
pub struct RunState {
    /// The settings of the run.
    pub settings: RunSettings,
    /// Its position.
    pub progress: Progress,
    /// The checkpoint store, only on the rank that saves.
    pub store: Option<Store>,
    /// The time of the last save or, before the first one, of the start.
    pub saved_at: Instant,
    /// Set once a rank has been asked to stop.
    pub is_stopping: bool,
    log: Log,
    /// The last evaluation, and the number of completed steps at its time.
    tested: Option<(u64, Test)>,
}

impl RunState {
    /// Opens the checkpoints and the log of a run. Called by all ranks of `comm`.
    ///
    /// # Errors
    /// [`TrainError`] of a file that cannot be written. Errors of the collectives.
    pub fn open(
        comm: &mut Communicator,
        settings: RunSettings,
        resumed: Option<&Resumed>,
    ) -> Result<Self, TrainError> {
        let store = match &settings.checkpoints {
            Some(kept) if comm.rank() == SAVES => kept.open(resumed.is_some()).map(Some),
            _ => Ok(None),
        };
        let store = agree(comm, store.map_err(TrainError::from))?;
        let log = Log::open(comm, &settings, resumed.map(|resumed| resumed.progress.step))?;
        let progress = resumed.map(|resumed| resumed.progress.clone());
        let mut progress = progress.unwrap_or_else(|| Progress::beginning(&settings));
        (progress.ranks, progress.global_batch) = (comm.ranks(), settings.global_batch);
        let (saved_at, is_stopping, tested) = (Instant::now(), false, None);
        Ok(Self { settings, progress, store, saved_at, is_stopping, log, tested })
    }

    /// Logs an event, and calls `on_event` with it.
    ///
    /// # Errors
    /// [`TrainError::Log`].
    pub fn emit(&mut self, event: Event, on_event: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        self.log.write(self.progress.step, &event)?;
        on_event(event);
        Ok(())
    }

    /// Returns the point at which the run ended early, if it did. It is the same on all ranks, because all have the same results.
    pub fn ended_early(&self) -> Option<EndedEarly> {
        let (stopping, best) = self.settings.early_stopping.zip(self.progress.best)?;
        let step = self.progress.step;
        (best.evaluations_since >= stopping.patience).then_some(EndedEarly { step, best })
    }

    /// Returns whether another step may follow in this run. It does not check the end of the epoch.
    pub fn goes_on(&self) -> bool {
        !self.is_stopping && self.ended_early().is_none()
    }

    /// Returns the results of an evaluation at the current step, if there was one.
    pub fn tested(&self) -> Option<Test> {
        let (step, test) = self.tested.as_ref()?;
        (*step == self.progress.step).then(|| test.clone())
    }

    /// Records an evaluation at the current step for early stopping, unless there is nothing to evaluate, and returns it.
    pub fn evaluated(&mut self, test: Test) -> Test {
        let (step, stopping) = (self.progress.step, self.settings.early_stopping);
        let min_delta = stopping.map_or(0.0, |stopping| stopping.min_delta);
        if test.tally.targets > 0.0 {
            self.progress.best =
                Some(Best::after(self.progress.best, test.tally.mean_loss(), step, min_delta));
        }
        self.tested = Some((step, test.clone()));
        test
    }

    /// Returns the results of this epoch, without its times.
    pub fn report(&self, test: Test) -> EpochReport {
        EpochReport {
            epoch: self.progress.epoch,
            loss: self.progress.tally.mean_loss(),
            test_loss: test.tally.mean_loss(),
            test_accuracy: test.tally.accuracy(),
            metrics: test.metrics,
            ..EpochReport::default()
        }
    }

    /// Returns the results of the last epoch, for a resumed run that was saved at its end.
    pub fn report_of_saved(&self, test: Test) -> EpochReport {
        let (epoch, loss) = (self.progress.epoch - 1, self.progress.last_loss);
        EpochReport { epoch, loss, ..self.report(test) }
    }

    /// Returns the result of a run that ends now. Its last step is saved, if there is a checkpoint directory.
    pub fn summary(&self, last: EpochReport, parameters_hash: String, memory_bytes: Option<u64>) -> Summary {
        let (step, is_saved) = (self.progress.step, self.settings.checkpoints.is_some());
        let stopped = self.is_stopping.then_some(Stopped { step, is_saved });
        let (ranks, ended_early) = (self.progress.ranks, self.ended_early());
        Summary { last, ranks, parameters_hash, memory_bytes, stopped, ended_early }
    }
}

/// Returns the error of a run that cannot be saved.
pub fn not_saved(error: CheckpointError) -> TrainError {
    TrainError::NotSaved { rank: SAVES, error }
}
