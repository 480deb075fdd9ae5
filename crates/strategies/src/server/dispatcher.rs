//! The dispatcher assigns tasks to workers. The coordinator and the threads of its links share it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use unisono::Rank;
use unisono_data::pipeline::lock;

use super::message::{Kind, Message};
use super::queue::Queue;
use super::settings::Staleness;
use unisono_train::rate::Rate;
use unisono_train::{LossSums, Progress};

/// The maximum time before a waiting worker is told to repeat its request, far less than any deadline.
const PATIENCE: Duration = Duration::from_millis(500);

/// The pending tasks, the workers, and the completed work.
#[derive(Debug)]
pub(super) struct Dispatcher {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of shares of a step.
    shares: usize,
    rate: Rate,
    /// The rank of the first worker.
    first: Rank,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue: Queue,
    epoch: usize,
    /// The number of steps of the run before this epoch.
    before: u64,
    /// The factor of all learning rates, which callbacks of earlier mirrored training may have set.
    rate_factor: f64,
    /// The last step of the epoch, from 0, and the factor for its rate: it may have few samples.
    last: (usize, f64),
    /// The number of shares applied since this process started.
    applied: u64,
    /// The sums of each step completed since the coordinator last read them.
    pub(super) made: Vec<LossSums>,
    /// The loss sums of the shares applied since the last completed step.
    begun: LossSums,
    evaluations: VecDeque<usize>,
    evaluating: BTreeMap<Rank, usize>,
    results: Vec<Option<LossSums>>,
    pub(super) workers: BTreeMap<Rank, Work>,
    /// The number of gradients that missed this many updates.
    pub(super) staleness: BTreeMap<u64, u64>,
    /// Workers lost since the coordinator last read them, and the causes.
    pub(super) lost: Vec<(Rank, String)>,
    /// Ranks on which workers have joined since the coordinator last read them.
    pub(super) joined: Vec<Rank>,
    /// A share whose loss is not finite: its worker, its step in the epoch, and its loss.
    pub(super) diverged: Option<(Rank, usize, f64)>,
    /// The report of a share that has made a parameter infinite, NaN or too large.
    pub(super) spoiled: Option<Message>,
    /// Parameters without a gradient that workers reported since the coordinator last read them, counted from 1.
    pub(super) without: Vec<u64>,
    /// Whether a worker or a server was asked to stop.
    pub(super) asks_to_stop: bool,
    /// Whether the run is over. The reply to further requests for a task is then `Kind::Done`.
    pub(super) is_over: bool,
    /// Whether the run has stopped on request. Set before it is over. A request after the last step, or in a run that then fails, does not stop it.
    pub(super) has_stopped: bool,
}

/// The work of a worker in an epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub(super) shares: u64,
    pub(super) targets: f64,
    /// Times in seconds.
    pub(super) waited: f64,
    pub(super) input: f64,
}

impl Dispatcher {
    /// Creates a dispatcher for workers on these ranks, each of which has one share of each step.
    pub(super) fn new(workers: Range<Rank>, staleness: Staleness, rate: Rate) -> Self {
        let (first, shares) = (workers.start, workers.len());
        let workers = workers.map(|rank| (rank, Work::default())).collect();
        let state = State { queue: Queue::new(shares, staleness), workers, ..State::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), shares, rate, first }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the next task of this worker. Waits for a while if there is none.
    pub(super) fn next(&self, worker: Rank, asks_to_stop: bool) -> Message {
        let mut state = self.state();
        state.asks_to_stop |= asks_to_stop;
        let series = worker - self.first;
        let next = state.next(worker, series, &self.rate);
        if next.kind != Kind::Wait {
            return next;
        }
        drop(self.wait(state, PATIENCE));
        self.state().next(worker, series, &self.rate)
    }

    /// Records that a share is applied, and that its gradient missed this many updates.
    pub(super) fn trained(&self, worker: Rank, report: &Message, missed: u64) {
        let mut state = self.state();
        let Some(share) = state.queue.done(worker) else { return };
        let tally = report.tally;
        state.asks_to_stop |= report.asks_to_stop != 0;
        if !(tally.loss as f32).is_finite() {
            state.diverged = Some((worker, share.step, tally.mean_loss()));
        }
        if report.spoiled > 0 {
            state.spoiled = Some(*report);
        }
        state.without.extend(Some(report.without).filter(|&parameter| parameter > 0));
        state.applied += 1;
        state.begun += tally;
        if state.applied.is_multiple_of(self.shares as u64) {
            let step = std::mem::take(&mut state.begun);
            state.made.push(step);
        }
        if tally.targets > 0.0 {
            *state.staleness.entry(missed).or_default() += 1;
        }
        if let Some(work) = state.workers.get_mut(&worker) {
            work.shares += 1;
            work.targets += tally.targets;
            work.waited += report.waited;
            work.input += report.input;
        }
        self.wake();
    }

    pub(super) fn evaluated(&self, worker: Rank, report: &Message) {
        let mut state = self.state();
        if let Some(batch) = state.evaluating.remove(&worker) {
            state.results[batch] = Some(report.tally);
            self.wake();
        }
    }

    /// Records that a worker has joined, in place of a lost one.
    pub(super) fn joined(&self, worker: Rank) {
        let mut state = self.state();
        state.workers.insert(worker, Work::default());
        state.joined.push(worker);
        self.wake();
    }

    /// Records that a worker is lost, and returns its tasks to the queues.
    pub(super) fn lost(&self, worker: Rank, why: String) {
        let mut state = self.state();
        state.queue.lost(worker);
        if let Some(batch) = state.evaluating.remove(&worker) {
            state.evaluations.push_front(batch);
        }
        state.workers.remove(&worker);
        state.lost.push((worker, why));
        self.wake();
    }
}

impl State {
    fn next(&mut self, worker: Rank, series: usize, rate: &Rate) -> Message {
        if self.is_over {
            return Message { asks_to_stop: self.has_stopped.into(), ..Message::new(Kind::Done) };
        }
        if let Some(batch) = self.evaluations.pop_front() {
            self.evaluating.insert(worker, batch);
            return Message {
                epoch: self.epoch as u64,
                step: self.queue.steps_made() as u64,
                number: batch as u64,
                applied: self.applied,
                ..Message::new(Kind::Evaluate)
            };
        }
        // The rate depends on the steps that are complete, not on the step of the share, because a series may be far ahead.
        let step = self.before + self.queue.steps_made() as u64;
        match self.queue.take(worker, series) {
            None => Message::new(Kind::Wait),
            Some(share) => {
                let (last, factor) = self.last;
                Message {
                    epoch: self.epoch as u64,
                    step: share.step as u64,
                    number: share.number as u64,
                    rate: rate.at(step) * self.rate_factor * if share.step == last { factor } else { 1.0 },
                    ..Message::new(Kind::Train)
                }
            }
        }
    }

    /// Begins the epoch at this position, which its completed steps skip. `last` is the last step of the epoch, from 0, and the factor for its rate.
    pub(super) fn begin(&mut self, progress: &Progress, last: (usize, f64)) {
        let &Progress { epoch, step_in_epoch: skipped, step, rate_factor, .. } = progress;
        (self.epoch, self.before, self.last) = (epoch, step - skipped as u64, last);
        self.rate_factor = rate_factor;
        self.queue.begin(skipped);
        self.staleness.clear();
        self.workers.values_mut().for_each(|work| *work = Work::default());
    }

    pub(super) fn evaluate(&mut self, batches: usize) {
        self.evaluations = (0..batches).collect();
        self.results = vec![None; batches];
    }

    /// Returns the results of the evaluation once all batches are complete, added in the order of the batches.
    pub(super) fn results(&self) -> Option<LossSums> {
        let mut total = LossSums::default();
        for result in &self.results {
            total += (*result)?;
        }
        Some(total)
    }
}
