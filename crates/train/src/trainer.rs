//! The loop over steps and epochs.

use std::time::{Duration, Instant};

use crate::compare;
use crate::damage::Damage;
use crate::places::check_run;
use crate::starvation;
use crate::state::RunState;
use crate::straggler::Stragglers;
use crate::{
    Buckets, EpochReport, Event, Feed, Mirror, OutOfData, Progress, Replica, Resumed, RunSettings, Share,
    StepReport, Steps, Summary, Test, Times, TrainError, agree,
};
use unisono::internals::gather;
use unisono::{Communicator, Ran, ReduceOp};

mod callback;
mod evaluation;
mod keep;
mod world;

pub use callback::{Callback, Flow};
pub use evaluation::evaluate;
use world::World;

/// One rank of a training run.
#[derive(Debug)]
pub struct Trainer<'a, R: Replica, F> {
    world: World<'a>,
    mirror: Mirror<R>,
    /// The number of parameters of the whole model.
    parameters: usize,
    feed: F,
    state: RunState,
    /// Whether a checkpoint was due during a round of local steps and is still to be saved.
    is_save_late: bool,
    /// The step after which replicas were last compared.
    verified: u64,
    resumed: Option<Resumed>,
    stragglers: Stragglers,
    damage: Damage,
    is_starvation_said: bool,
}

impl<'a, R: Replica, F: Feed<Batch = R::Batch>> Trainer<'a, R, F> {
    /// Broadcasts rank 0's values to the replica, or restores them from a checkpoint. If ranks hold [parts](Replica::parts) of the model, the ranks
    /// that hold the same part are replicas of each other. Called by all ranks with the same settings.
    ///
    /// # Errors
    /// [`TrainError`] of the replica, of the collectives, of a checkpoint of another run, or of a file that
    /// cannot be written.
    pub fn new(
        comm: &'a mut Communicator,
        mut replica: R,
        feed: F,
        settings: RunSettings,
        mut resumed: Option<Resumed>,
    ) -> Result<Self, TrainError> {
        check_run(comm, &settings, feed.held_out(), resumed.as_ref())?;
        let mut world = World::of(comm, &mut replica)?;
        let loaded =
            resumed.as_mut().map_or(Ok(()), |resumed| resumed.load_parts(world.replicas(), &mut replica));
        agree(world.all, loaded)?;
        let RunSettings { ref optimizer, ref buckets, clip_norm, .. } = settings;
        let mirror = Mirror::new(world.replicas(), replica, optimizer.clone(), buckets, clip_norm);
        let mirror = mirror.map_err(|error| world.explain(error));
        let mut mirror = world.settle(mirror)?;
        if let Some(resumed) = &mut resumed {
            let restored = resumed.restore(world.replicas(), &mut mirror);
            world.settle(restored)?;
        }
        let mut parameters = mirror.replica().parameters().iter().map(super::Parameter::count).sum();
        let names: Vec<_> = mirror.replica().parameters().iter().map(|found| found.name.clone()).collect();
        if let Some(mut parts) = mirror.replica().parts() {
            // All ranks return this error: the models of all replicas are the same.
            compare::distinct(gather(parts.comm, &names)?.iter().flatten())?;
            parameters = parts.sum(parameters as f64)? as usize;
        }
        let comm = &mut *world.all;
        let state = RunState::open(comm, settings, resumed.as_ref())?;
        Ok(Self {
            world,
            mirror,
            parameters,
            feed,
            stragglers: Stragglers::new(state.settings.straggler_every),
            verified: state.progress.step,
            state,
            is_save_late: false,
            resumed,
            damage: Damage::default(),
            is_starvation_said: false,
        })
    }

    /// Returns the number of parameters of the model.
    pub fn parameter_count(&self) -> usize {
        self.parameters
    }

    /// Returns the number of training samples, if the feed knows.
    pub fn sample_count(&self) -> Option<usize> {
        self.feed.steps().and_then(|steps| self.feed.samples(steps))
    }

    /// Returns the settings of the run.
    pub fn settings(&self) -> &RunSettings {
        &self.state.settings
    }

    /// Returns the method that will all-reduce the largest bucket, and the reason for it. `None` if gradients are reduced in memory that ranks share,
    /// or on GPUs, where each call chooses.
    pub fn all_reduce(&mut self) -> Option<Ran> {
        Some(self.mirror.buckets()?.ran(self.world.replicas()))
    }

    /// Returns the buckets. `None` if gradients are reduced on GPUs, or in memory that ranks share.
    pub fn buckets(&self) -> Option<&Buckets> {
        self.mirror.buckets()
    }

    /// Trains until the last epoch is complete, a rank is [asked to stop](RunSettings::stop), or the callback ends the run. In all cases it saves the
    /// last step, if there is a checkpoint directory. The checkpoint is complete on disk when this returns on any rank. If this rank fails, it fails
    /// the communicator, so that no other rank waits for it.
    ///
    /// # Errors
    /// [`TrainError`] of a failed rank, model, file or data. Also if the loss is not finite, or the replicas differ at the end.
    pub fn run(mut self, mut callback: impl Callback) -> Result<Summary, TrainError> {
        let ended = self.epochs(&mut callback).and_then(|last| self.finish(last));
        let Progress { epoch, step_in_epoch, .. } = self.state.progress;
        let ended = ended.map_err(|error| match error {
            // That rank is about to fail the communicator, whose error has the cause.
            TrainError::Elsewhere { .. } => {
                self.world.all.barrier().map_or_else(TrainError::from, |()| error)
            }
            TrainError::Data(error) => {
                TrainError::Feed { rank: self.world.all.rank(), epoch, step: step_in_epoch, error }
            }
            error => self.world.explain(error),
        });
        let has_parts = self.world.has_parts();
        let is_alone = has_parts || self.mirror.is_divided() || self.mirror.rounds.is_some();
        // Other ranks do not check data that only this rank, or only the replicas of its part, hold or update.
        let is_common = |error: &TrainError| match error {
            TrainError::NotFinite { .. } => !is_alone,
            TrainError::ReplicasDiffer { .. } => !has_parts,
            error => error.is_common(),
        };
        if let Some(error) = ended.as_ref().err().filter(|error| !is_common(error)) {
            self.world.all.fail(&error.to_string());
        }
        ended
    }

    /// Runs all remaining epochs. Returns the report of the last one.
    fn epochs(&mut self, callback: &mut dyn Callback) -> Result<EpochReport, TrainError> {
        self.resumed.take().iter().flat_map(Resumed::events).for_each(|event| callback.on_event(event));
        let mut last = None;
        while self.state.has_epoch_left() {
            // A stop skips the evaluation of its step, so the resumed run makes it.
            self.evaluate_in_epoch(&mut |event| callback.on_event(event))?;
            // This evaluation, or that at the end of the previous epoch, may have been the best.
            self.save(false)?;
            let report = self.epoch(&mut |event| callback.on_event(event))?;
            if self.state.is_stopping {
                return Ok(report);
            }
            self.state.emit(Event::Epoch(report.clone()), &mut |event| callback.on_event(event))?;
            let goes_on = self.follow(callback, &report)?;
            self.state.progress.next_epoch(report.loss);
            last = Some(report);
            if !goes_on {
                break;
            }
        }
        match last {
            Some(last) => Ok(last),
            // The run has already been saved at its end.
            None => {
                let test = self.measured()?;
                Ok(self.state.report_of_saved(test))
            }
        }
    }

    /// Runs the rest of an epoch, then evaluates on the held-out samples. If the run must stop, it skips the evaluation, for which there may be no
    /// time.
    fn epoch(&mut self, on_event: &mut impl FnMut(Event)) -> Result<EpochReport, TrainError> {
        let first = self.state.progress.step_in_epoch;
        let mut steps = self.feed.epoch(self.state.progress.epoch, first)?;
        let (began, mut times, mut targets) = (Instant::now(), Times::default(), 0.0);
        let (known, mut asks_to_stop) = (self.feed.steps(), false);
        while self.state.goes_on() && known.is_none_or(|steps| self.state.progress.step_in_epoch < steps) {
            let rate = self.state.next_rate(|steps| self.feed.samples(steps));
            let Some(report) = self.step(&mut steps, rate, on_event)? else { break };
            let tally = report.sums.tally;
            times += report.times;
            targets += tally.targets;
            self.state.complete_step(tally, (rate, known, report.times), on_event)?;
            self.verify()?;
            // A stop and a checkpoint wait for the end of a round, where all ranks hold the same parameters.
            let is_between = self.mirror.is_between_rounds();
            let asks_to_save = report.sums.ranks_to_save > 0.0;
            asks_to_stop = report.sums.ranks_to_stop > 0.0;
            self.state.is_stopping = asks_to_stop && is_between;
            self.is_save_late = asks_to_save && !is_between;
            if !self.state.is_stopping {
                // Evaluates before saving, so that a run that resumes from this step has the evaluation.
                self.evaluate_in_epoch(on_event)?;
                let saves_since = Instant::now();
                self.save(asks_to_save && is_between)?;
                let Times { input, compute, exposed, update, .. } = report.times;
                self.stragglers.add(input + compute + update + saves_since.elapsed(), exposed);
                if let Some(found) = self.stragglers.report(self.world.all, self.state.progress.step)? {
                    on_event(Event::Stragglers(found));
                }
            }
        }
        drop(steps);
        self.mirror.settle()?;
        self.mirror.end_round(self.world.replicas())?;
        self.state.is_stopping |= asks_to_stop;
        if std::mem::take(&mut self.is_save_late) && !self.state.is_stopping {
            self.save(true)?;
        }
        let samples = |step| self.feed.samples(step).map(|samples| samples as f64);
        let seen = samples(self.state.progress.step_in_epoch)
            .zip(samples(first))
            .map_or(targets, |(end, begin)| end - begin);
        let took = began.elapsed();
        let test = if self.state.is_stopping { Test::default() } else { self.test()? };
        let mut report = self.report(test, times, took, seen)?;
        let own = self.feed.skipped(self.state.progress.epoch);
        let (skipped, named) = self.damage.notice(self.world.replicas(), &own)?;
        report.skipped_samples = skipped;
        let (waits, is_said) = (report.input_percent, &mut self.is_starvation_said);
        let notices = named.into_iter().chain(starvation::notice(is_said, waits, &report.input_stages));
        notices.for_each(|notice| on_event(Event::Notice(notice)));
        Ok(report)
    }

    /// Takes the next step's batches from the feed and makes the step. Returns `None` if the epoch is over.
    fn step(
        &mut self,
        steps: &mut Steps<R::Batch>,
        rate: f64,
        on_event: &mut impl FnMut(Event),
    ) -> Result<Option<StepReport>, TrainError> {
        let waits_since = Instant::now();
        let Progress { epoch, step_in_epoch, .. } = self.state.progress;
        let rank = self.world.all.rank();
        let unread = |error| TrainError::Feed { rank, epoch, step: step_in_epoch + 1, error };
        let passes = steps.next().transpose().map_err(unread)?;
        let input = waits_since.elapsed();
        unisono::trace::record("input", waits_since, waits_since + input);
        let (ranks, policy) = (self.world.replicas().ranks(), self.state.settings.out_of_data);
        let asks = [self.state.settings.stop.is_asked(), self.is_save_due()];
        let [asks_to_stop, asks_to_save] = self.world.any(asks)?;
        let share = Share {
            is_out_of_data: passes.is_none(),
            passes: &passes.unwrap_or_default(),
            asks_to_stop,
            asks_to_save,
        };
        let mut report = self.mirror.step(self.world.replicas(), share, rate, |sums| {
            sums.tally.loss.is_finite() && policy.makes_step(sums.ranks_out_of_data as usize, ranks)
        })?;
        report.times.input = input;
        let (tally, out) = (report.sums.tally, report.sums.ranks_out_of_data as usize);
        report.without_gradient.iter().for_each(|name| on_event(Event::without_gradient(name)));
        if !policy.makes_step(out, ranks) {
            if out < ranks && policy == OutOfData::Error {
                return Err(TrainError::OutOfData { out, ranks, epoch, step: step_in_epoch + 1 });
            }
            if out < ranks {
                let after = format!("epoch {epoch} ends after step {step_in_epoch}");
                on_event(Event::Notice(format!("{after}: {out} of {ranks} ranks have no more data")));
            }
            return Ok(None);
        }
        if !tally.loss.is_finite() {
            // As `f32`, because the loss is sent in that format.
            let found = compare::all_where(self.world.all, !(report.own.loss as f32).is_finite())?;
            let (step, loss, of) = (step_in_epoch + 1, tally.mean_loss(), self.world.all.ranks());
            return Err(TrainError::Diverged { ranks: found, of, epoch, step, loss });
        }
        Ok(Some(report))
    }

    fn report(
        &mut self,
        test: Test,
        times: Times,
        took: Duration,
        samples: f64,
    ) -> Result<EpochReport, TrainError> {
        let share =
            |time: Duration| if took.is_zero() { 0.0 } else { time.as_secs_f64() / took.as_secs_f64() };
        let mut shares = [times.exposed, times.hidden, times.input].map(share);
        self.world.all.all_reduce(&mut shares, ReduceOp::Mean)?;
        let [exposed, hidden, input] = shares;
        Ok(EpochReport {
            samples_per_s: if took.is_zero() { 0.0 } else { samples / took.as_secs_f64() },
            exposed_communication_percent: 100.0 * exposed,
            hidden_communication_percent: 100.0 * hidden,
            input_percent: 100.0 * input,
            input_stages: self.feed.stages(),
            ..self.state.report(test)
        })
    }
}
