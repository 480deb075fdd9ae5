//! The state of a run apart from its model and its data.

use std::time::Instant;

use crate::arrays::SAVES;
use crate::checkpoint::{Checkpoint, CheckpointError, Lowest, Store};
use crate::log::Log;
use crate::{
    Best, EndedEarly, EpochReport, Event, LossSums, Progress, Resumed, RunSettings, StepEvent, Stopped,
    Summary, Test, Times, TrainError, agree,
};
use unisono::Communicator;

/// The share of the first step's loss below which the mean loss of an epoch must fall, or else the run warns.
const LEAST_PROGRESS: f64 = 0.95;

/// The position of a run, its checkpoints, its log and its last evaluation. Used by a trainer, and by the coordinator of parameter servers.
#[derive(Debug)]
pub struct RunState {
    /// The settings of the run.
    pub settings: RunSettings,
    /// Its position.
    pub progress: Progress,
    /// The checkpoint store, only on the rank that saves.
    store: Option<Store>,
    /// Set once a rank has been asked to stop.
    pub is_stopping: bool,
    log: Log,
    /// The step and the time of the last save or, before the first one, of the start.
    saved: (u64, Instant),
    /// The step of the best saved evaluation.
    best_saved: Option<u64>,
    has_warned: bool,
    /// The last evaluation, and the number of completed steps at its time.
    tested: Option<(u64, Test)>,
}

impl RunState {
    /// Opens the checkpoints and the log of a run. Called by all ranks of `comm`.
    pub fn open(
        comm: &mut Communicator,
        settings: RunSettings,
        resumed: Option<&Resumed>,
    ) -> Result<Self, TrainError> {
        let store = match &settings.checkpoints {
            Some(kept) if comm.rank() == SAVES => {
                kept.open(resumed.is_some_and(|resumed| resumed.is_in(&kept.directory))).map(Some)
            }
            _ => Ok(None),
        };
        let mut store = agree(comm, store.map_err(TrainError::from))?;
        let log = Log::open(comm, &settings, resumed.map(|resumed| resumed.progress.step))?;
        let progress = resumed.map(|resumed| resumed.progress.clone());
        let mut progress = progress.unwrap_or_else(|| Progress::beginning(&settings));
        (progress.ranks, progress.global_batch) = (comm.ranks(), settings.global_batch);
        progress.description.clone_from(&settings.description);
        progress.evaluated.get_or_insert(progress.step);
        let best_saved = progress.best.filter(|_| settings.early_stopping.is_some()).map(|best| best.step);
        let saved = (progress.step, Instant::now());
        if let Some(store) = &mut store {
            store.forget_after(progress.step);
            // The checkpoint may have been deleted.
            progress.lowest = progress.lowest.filter(|lowest| store.has(lowest.step));
            let lowest = progress.lowest.filter(|_| settings.early_stopping.is_none());
            if let Some(step) = best_saved.or(lowest.map(|lowest| lowest.step)) {
                store.keep(step);
            }
        }
        let (is_stopping, has_warned, tested) = (false, false, None);
        Ok(Self { settings, progress, store, is_stopping, log, saved, best_saved, has_warned, tested })
    }

    /// Returns whether a checkpoint of this step is due. Only the rank that saves knows it, because clocks differ.
    pub fn is_save_due(&self, step: u64) -> bool {
        let (saved, at) = self.saved;
        let kept = self.settings.checkpoints.as_ref().filter(|_| self.store.is_some());
        step > saved && kept.is_some_and(|kept| kept.when.due(step, at.elapsed()))
    }

    /// Returns whether the last step has the best evaluation so far and is not saved yet, in a run with early stopping. The same on all ranks.
    pub fn is_new_best(&self) -> bool {
        let is_kept = self.settings.checkpoints.is_some() && self.settings.early_stopping.is_some();
        let step = self.progress.step;
        is_kept && self.progress.best.is_some_and(|best| best.step == step) && self.best_saved != Some(step)
    }

    /// Checks whether the save in the background has already failed.
    pub fn check_save(&mut self) -> Result<(), TrainError> {
        self.store.as_mut().map_or(Ok(()), Store::check).map_err(not_saved)
    }

    pub(crate) fn wait_for_save(&mut self) -> Result<(), TrainError> {
        self.store.as_mut().map_or(Ok(()), Store::wait).map_err(not_saved)
    }

    /// Saves the last step in the background, and keeps it if it has the best evaluation. Only the rank that saves has a checkpoint. Called by all
    /// ranks.
    pub fn save(&mut self, checkpoint: Option<Checkpoint<Progress>>) -> Result<(), TrainError> {
        let step = self.progress.step;
        let is_best = self.is_new_best();
        if is_best {
            self.best_saved = Some(step);
        }
        if let Some((store, checkpoint)) = self.store.as_mut().zip(checkpoint) {
            if is_best {
                store.keep(step);
            }
            let flushed = self.log.flush();
            store.save_in_background(checkpoint).map_err(not_saved)?;
            flushed?;
        }
        self.saved = (step, Instant::now());
        self.log.restart();
        Ok(())
    }

    /// Takes the store, to save the end of the run. If the last step has the best evaluation, it replaces the older step that was kept.
    pub fn take_store(&mut self) -> Option<Store> {
        let (step, is_best) = (self.progress.step, self.is_new_best());
        self.store.iter_mut().filter(|_| is_best).for_each(|store| store.keep(step));
        self.store.take()
    }

    /// Writes buffered curves. A run that resumes from a checkpoint does not repeat the curves before it.
    pub fn flush_log(&mut self) -> Result<(), TrainError> {
        self.log.flush()
    }

    /// Returns the learning rate of the next step. `samples` returns the number of samples in the steps of the epoch.
    pub fn next_rate(&self, samples: impl Fn(usize) -> Option<usize>) -> f64 {
        let Progress { step, step_in_epoch, rate_factor, .. } = self.progress;
        self.settings.rate.at(step) * rate_factor * self.short_step_factor(step_in_epoch, samples)
    }

    /// Counts and reports a completed step with these sums, `steps` being the number of steps of an epoch.
    pub fn complete_step(
        &mut self,
        tally: LossSums,
        (rate, steps, times): (f64, Option<usize>, Times),
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), TrainError> {
        if self.settings.early_stopping.is_none() {
            self.record_loss(tally.mean_loss());
        }
        self.progress.count_step(tally);
        let Progress { epoch, step_in_epoch: step, .. } = self.progress;
        let (loss, targets) = (tally.mean_loss(), tally.targets);
        self.emit(Event::Step(StepEvent { epoch, step, steps, loss, rate, targets, times }), on_event)
    }

    /// Keeps the last checkpoint, however old, if the loss of the next step is the lowest so far. A run that diverges to finite values therefore does
    /// not replace it by useless checkpoints.
    fn record_loss(&mut self, loss: f64) {
        // The loss is computed with the parameters before the step.
        let step = self.progress.step;
        let is_lowest = loss.is_finite() && self.progress.lowest.is_none_or(|lowest| loss < lowest.loss);
        if let Some(store) = self.store.as_mut().filter(|store| is_lowest && store.has(step)) {
            store.keep(step);
            self.progress.lowest = Some(Lowest { step, loss });
        }
    }

    /// Logs an event, and calls `on_event` with it. After an epoch without progress, also calls it with a warning.
    pub fn emit(&mut self, event: Event, on_event: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        self.log.write(self.progress.step, &event)?;
        let warning = match &event {
            Event::Epoch(report) => self.warning(report),
            _ => None,
        };
        on_event(event);
        warning.into_iter().for_each(|warning| on_event(Event::Notice(warning)));
        Ok(())
    }

    /// Returns a warning after the first epoch whose mean loss is hardly below that of the first step. A first epoch of one step is not
    /// compared.
    fn warning(&mut self, &EpochReport { epoch, loss, .. }: &EpochReport) -> Option<String> {
        let first = self.progress.first_loss.filter(|first| loss > LEAST_PROGRESS * first)?;
        if self.progress.step == 1 || std::mem::replace(&mut self.has_warned, true) {
            return None;
        }
        Some(format!(
            "the mean loss of epoch {epoch} is {loss:.4}, and that of the first step was {first:.4}: unless the model was trained before, try a \
             lower learning rate or a longer warm-up"
        ))
    }

    /// Returns the point at which the run ended early, if it did. It is the same on all ranks, because all have the same results.
    pub fn ended_early(&self) -> Option<EndedEarly> {
        let (stopping, best) = self.settings.early_stopping.zip(self.progress.best)?;
        let step = self.progress.step;
        (best.evaluations_since >= stopping.patience).then_some(EndedEarly { step, best })
    }

    /// Returns whether the run has another epoch, or the rest of one. A run that ended early completes its epoch when it resumes, if it was saved
    /// before the results of the epoch.
    pub fn has_epoch_left(&self) -> bool {
        let Progress { epoch, step_in_epoch, .. } = self.progress;
        epoch <= self.settings.epochs && (step_in_epoch > 0 || self.ended_early().is_none())
    }

    /// Returns whether an evaluation is due after the last step, or has been since an earlier one. An epoch ends with an evaluation in any case.
    pub fn is_evaluation_due(&self) -> bool {
        let Progress { step, evaluated, .. } = self.progress;
        self.settings.evaluate_every.is_some_and(|every| step / every > evaluated.unwrap_or(0) / every)
    }

    /// Returns the factor for the rate of a step of the epoch, counted from 0. `samples` returns the number of samples in the steps of the epoch.
    ///
    /// It is 1 for steps of at least a quarter of the global batch, and then falls to 0 with the size: the mean gradient of few samples is mostly
    /// noise, and the rate is that of the whole batch.
    pub fn short_step_factor(&self, step: usize, samples: impl Fn(usize) -> Option<usize>) -> f64 {
        let own = samples(step + 1).zip(samples(step)).map(|(end, begin)| (end - begin) as f64);
        own.map_or(1.0, |own| (4.0 * own / self.settings.global_batch as f64).min(1.0))
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

    /// Records an evaluation at the current step and returns it. It counts for early stopping unless there is nothing to evaluate, or the step was
    /// evaluated before the run was resumed.
    pub fn evaluated(&mut self, test: Test) -> Test {
        let (step, stopping) = (self.progress.step, self.settings.early_stopping);
        let min_delta = stopping.map_or(0.0, |stopping| stopping.min_delta);
        if test.tally.targets > 0.0 && self.progress.evaluated != Some(step) {
            self.progress.best =
                Some(Best::after(self.progress.best, test.tally.mean_loss(), step, min_delta));
        }
        self.progress.evaluated = Some(step);
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

#[cfg(test)]
mod tests;
