//! The coordinator: the first server, which controls the run. It starts epochs and steps, evaluates, reports and saves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::dispatcher::{Dispatcher, Work};
use super::holdings::Holdings;
use super::message::Message;
use unisono::Rank;
use unisono_train::internals::{RunState, hash_with_buffers, not_saved};
use unisono_train::{
    EpochReport, Event, Feed, Progress, Replica, Summary, Test, Times, TrainError, WorkerReport,
    WorkersReport,
};

/// The interval at which the coordinator checks for a request to stop, and for a checkpoint that is due.
const LOOKS: Duration = Duration::from_millis(100);
/// The time to wait for a worker to join once all are lost.
const TO_JOIN: Duration = Duration::from_secs(60);

pub(super) struct Coordinator<'a, R, F> {
    pub(super) replica: R,
    pub(super) feed: F,
    pub(super) dispatcher: &'a Dispatcher,
    pub(super) holdings: Holdings<'a>,
    pub(super) state: RunState,
    pub(super) workers: usize,
    /// Whether the run goes on without a lost worker, and another one may join in its place.
    pub(super) is_elastic: bool,
    /// The time since which there has been no worker.
    pub(super) deserted: Option<Instant>,
    /// The most recently lost worker, and the cause.
    pub(super) last_lost: Option<(Rank, String)>,
    /// The parameters that were reported as having no gradient, counted from 1.
    pub(super) without: BTreeSet<u64>,
}

impl<R: Replica, F: Feed<Batch = R::Batch>> Coordinator<'_, R, F> {
    /// Controls the run until its end, then informs the other servers. Workers are informed once the run is over.
    pub(super) fn run(mut self, on_event: &mut dyn FnMut(Event)) -> Result<Summary, TrainError> {
        let ended = self.epochs(on_event).and_then(|last| self.finish(last));
        let has_stopped = ended.as_ref().is_ok_and(|summary| summary.stopped.is_some());
        let ended = match self.holdings.leave(has_stopped) {
            // The error that ended the run is more precise than the loss of a server.
            Err(error) if ended.is_ok() => Err(error.into()),
            _ => ended,
        };
        self.dispatcher.state().has_stopped = has_stopped && ended.is_ok();
        ended
    }

    /// Runs all remaining epochs. Returns the report of the last one.
    fn epochs(&mut self, on_event: &mut dyn FnMut(Event)) -> Result<EpochReport, TrainError> {
        let mut last = None;
        while self.state.has_epoch_left() {
            let report = self.epoch(on_event)?;
            if self.state.is_stopping {
                return Ok(report);
            }
            self.state.emit(Event::Epoch(report.clone()), on_event)?;
            self.state.progress.next_epoch(report.loss);
            last = Some(report);
        }
        match last {
            Some(last) => Ok(last),
            // The run has already been saved at its end.
            None => {
                let test = self.evaluate(on_event)?;
                Ok(self.state.report_of_saved(test))
            }
        }
    }

    /// Runs the rest of an epoch, then evaluates, unless the run must stop.
    fn epoch(&mut self, on_event: &mut dyn FnMut(Event)) -> Result<EpochReport, TrainError> {
        let first = self.state.progress.step_in_epoch;
        let steps = self.feed.steps().expect("a feed that does not know its steps is refused");
        // A stop skips the evaluation of its step, so the resumed run makes it. That at the end of the previous epoch may have been the best.
        self.pause(steps, on_event)?;
        let last = steps.saturating_sub(1);
        let factor = self.state.short_step_factor(last, |steps| self.feed.samples(steps));
        self.dispatcher.state().begin(&self.state.progress, (last, factor));
        let began = Instant::now();
        while self.state.progress.step_in_epoch < steps && self.state.goes_on() {
            let until = self.next_pause(steps);
            self.dispatcher.state().queue.until = until;
            self.dispatcher.wake();
            self.watch(steps, on_event)?;
            self.pause(steps, on_event)?;
        }
        let samples = |step| self.feed.samples(step).unwrap_or(0) as f64;
        let seen = samples(self.state.progress.step_in_epoch) - samples(first);
        let took = began.elapsed().as_secs_f64();
        let workers = self.workers_report(took);
        self.state.emit(Event::Workers(workers), on_event)?;
        let test = if self.state.is_stopping { Test::default() } else { self.test(on_event)? };
        let state = self.dispatcher.state();
        let percent = |of: fn(&Work) -> f64| {
            let sum: f64 = state.workers.values().map(of).sum();
            let share = sum / (took * state.workers.len().max(1) as f64);
            // A wait may have begun before the epoch.
            if took > 0.0 { 100.0 * share.min(1.0) } else { 0.0 }
        };
        Ok(EpochReport {
            samples_per_s: if took > 0.0 { seen / took } else { 0.0 },
            exposed_communication_percent: percent(|work| work.waited),
            input_percent: percent(|work| work.input),
            // The input pipelines are on the workers.
            ..self.state.report(test)
        })
    }

    /// Returns the first step before which all workers pause, for a checkpoint, an evaluation, or the end of the epoch.
    fn next_pause(&self, steps: usize) -> usize {
        let Progress { step, step_in_epoch, .. } = self.state.progress;
        let saves = self.state.settings.checkpoints.as_ref().and_then(|kept| kept.when.every_steps);
        let every = saves.into_iter().chain(self.state.settings.evaluate_every);
        let to_next = every.map(|every| (every - step % every) as usize);
        let next = to_next.map(|count| step_in_epoch + count).min().unwrap_or(steps);
        next.min(steps)
    }

    /// Reports steps as they complete, until all permitted steps have.
    fn watch(&mut self, steps: usize, on_event: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        let mut is_closed = false;
        loop {
            let mut state = self.dispatcher.state();
            if let Some((rank, step, loss)) = state.diverged {
                let Progress { ranks: of, epoch, .. } = self.state.progress;
                let (ranks, step) = (vec![rank], step + 1);
                return Err(TrainError::Diverged { ranks, of, epoch, step, loss });
            }
            if let Some(Message { spoiled, largest, server, .. }) = state.spoiled {
                let parameter = self.replica.parameters()[spoiled as usize - 1].name.clone();
                let (found, rank, step) = (largest as f32, server as Rank, self.state.progress.step + 1);
                return Err(TrainError::NotFinite { of: "largest value", parameter, found, rank, step });
            }
            let made = std::mem::take(&mut state.made);
            self.state.is_stopping |= state.asks_to_stop || self.state.settings.stop.is_asked();
            if (self.state.is_stopping || self.state.is_save_due(self.state.progress.step)) && !is_closed {
                state.queue.close();
                is_closed = true;
            }
            let is_done = state.queue.is_done();
            if made.is_empty() && !is_done {
                state = self.dispatcher.wait(state, LOOKS);
            }
            drop(state);
            self.report_changes(on_event)?;
            for tally in made {
                let rate = self.state.next_rate(|steps| self.feed.samples(steps));
                self.state.complete_step(tally, (rate, Some(steps), Times::default()), on_event)?;
            }
            if is_done {
                return Ok(());
            }
        }
    }

    /// Reports lost and joined workers, and parameters without a gradient. Fails if a worker is lost and the run is not elastic, or if no worker is
    /// left and none joins in time.
    fn report_changes(&mut self, on_event: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        let mut state = self.dispatcher.state();
        let (lost, joined) = (std::mem::take(&mut state.lost), std::mem::take(&mut state.joined));
        let without = std::mem::take(&mut state.without);
        let (left, of) = (state.workers.len(), self.workers);
        drop(state);
        for (rank, why) in lost {
            if !self.is_elastic {
                // The worker that repeats its share may pull a mixture of updated and old buckets, so the run would save other parameters.
                return Err(TrainError::WorkerLost { rank, why });
            }
            on_event(Event::Notice(format!(
                "the worker on rank {rank} is lost ({why}): others do its share; {left} of {of} workers are left"
            )));
            self.last_lost = Some((rank, why));
        }
        for rank in joined {
            on_event(Event::Notice(format!("a worker has joined on rank {rank}: {left} of {of} work")));
        }
        for parameter in without.into_iter().filter(|&parameter| self.without.insert(parameter)) {
            on_event(Event::without_gradient(&self.replica.parameters()[parameter as usize - 1].name));
        }
        if left > 0 {
            self.deserted = None;
            return Ok(());
        }
        let since = *self.deserted.get_or_insert_with(Instant::now);
        if since.elapsed() < TO_JOIN {
            return Ok(());
        }
        let (rank, why) = self.last_lost.clone().unwrap_or_default();
        Err(TrainError::WorkersLost { of, rank, why })
    }

    /// Performs the operations that are due between two steps, while no worker computes.
    fn pause(&mut self, steps: usize, on_event: &mut dyn FnMut(Event)) -> Result<(), TrainError> {
        let Progress { step, epoch, step_in_epoch, .. } = self.state.progress;
        if self.state.is_stopping {
            return Ok(());
        }
        if self.state.is_evaluation_due() && step_in_epoch < steps {
            let test = self.test(on_event)?;
            self.state.emit(Event::Evaluation(test.evaluation(epoch, step)), on_event)?;
        }
        self.state.check_save()?;
        if self.state.is_save_due(step) || self.state.is_new_best() {
            let began = Instant::now();
            let checkpoint = self.holdings.checkpoint(&self.replica, &self.state.progress)?;
            unisono::trace::record("snapshot", began, Instant::now());
            self.state.save(Some(checkpoint))?;
        }
        Ok(())
    }

    /// Makes the workers evaluate, at most once after each step. The result counts for early stopping.
    fn test(&mut self, on_event: &mut dyn FnMut(Event)) -> Result<Test, TrainError> {
        if let Some(test) = self.state.tested() {
            return Ok(test);
        }
        let test = self.evaluate(on_event)?;
        Ok(self.state.evaluated(test))
    }

    /// Returns the results on the held-out samples, which have the same bits on any number of workers.
    fn evaluate(&mut self, on_event: &mut dyn FnMut(Event)) -> Result<Test, TrainError> {
        let batches = self.feed.held_out();
        self.dispatcher.state().evaluate(batches);
        self.dispatcher.wake();
        loop {
            let state = self.dispatcher.state();
            if let Some(tally) = state.results() {
                return Ok(Test { tally, ..Test::default() });
            }
            drop(self.dispatcher.wait(state, LOOKS));
            self.report_changes(on_event)?;
        }
    }

    fn workers_report(&self, took: f64) -> WorkersReport {
        let state = self.dispatcher.state();
        let report = |(&rank, work): (&usize, &Work)| WorkerReport {
            rank,
            shares: work.shares,
            targets_per_s: work.targets / took,
            waits_percent: (100.0 * work.waited / took).clamp(0.0, 100.0),
        };
        let workers = state.workers.iter().map(report).collect();
        WorkersReport { epoch: self.state.progress.epoch, workers, staleness: state.staleness.clone() }
    }

    fn finish(&mut self, last: EpochReport) -> Result<Summary, TrainError> {
        let checkpoint = self.holdings.checkpoint(&self.replica, &self.state.progress)?;
        unisono_train::load(&mut self.replica, &checkpoint.parameters)?;
        let hash = hash_with_buffers(&mut self.replica)?;
        let flushed = self.state.flush_log();
        if let Some(mut store) = self.state.take_store() {
            store.save(checkpoint).map_err(not_saved)?;
        }
        flushed?;
        // Servers and workers have no collective that could gather their resident memory.
        Ok(self.state.summary(last, format!("{hash:016x}"), None))
    }
}
