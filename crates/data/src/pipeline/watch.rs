//! Measures how the stages of a pipeline spend their time, and which of them limits the others.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The work of a stage so far. Its threads are busy, starved, or without space for another result. The three fractions of their time add up to 1 once
/// the stage has begun.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct StageReport {
    /// The [name](super::Pipeline::named) of the stage; `source` for everything before the first stage with threads.
    pub name: &'static str,
    /// The number of active threads.
    pub threads: usize,
    /// The maximum number of threads: the requested number, or the number of cores.
    pub most_threads: usize,
    /// The number of elements made.
    pub elements: u64,
    /// The fraction of the threads' time spent on work.
    pub busy: f64,
    /// The fraction of the threads' time spent waiting for the previous stage.
    pub starved: f64,
    /// The fraction of the threads' time spent waiting for the consumer to make space.
    pub full: f64,
    /// The fraction of the working time that threads ran on a processor. In the rest, they waited for a disk or for a core.
    pub processor: f64,
    /// The mean number of finished elements that remained when the consumer took one.
    pub ready: f64,
    /// The fraction of the busy time for each [part] of the work.
    pub parts: Vec<(&'static str, f64)>,
}

/// Returns the busiest stage, which limits the others if the consumer waits at all.
pub fn bottleneck(stages: &[StageReport]) -> Option<&StageReport> {
    stages.iter().filter(|stage| stage.busy > 0.0).max_by(|a, b| a.busy.total_cmp(&b.busy))
}

/// Times a part of a stage's work, such as the decoding of an image. It has a separate entry in the stage's [report](StageReport::parts). Parts do
/// not nest.
///
/// ```
/// use unisono_data::pipeline::part;
/// use unisono_data::{DataError, Pipeline, Threads};
///
/// let mut squares = Pipeline::of(0..10_u64)
///     .map(Threads::Fixed(2), |number| Ok(part("squaring", || number * number)))
///     .named("arithmetic");
/// let watch = squares.watch();
/// assert_eq!(squares.by_ref().collect::<Result<Vec<_>, DataError>>()?.len(), 10);
/// let stages = watch.stages();
/// assert_eq!(stages[1].name, "arithmetic");
/// assert_eq!(stages[1].parts[0].0, "squaring");
/// # Ok::<(), DataError>(())
/// ```
pub fn part<R>(name: &'static str, work: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = work();
    PARTS.with_borrow_mut(|parts| add(parts, name, began.elapsed()));
    result
}

type Parts = Vec<(&'static str, Duration)>;

thread_local! {
    /// The parts of the element that is in progress on this thread.
    static PARTS: RefCell<Parts> = const { RefCell::new(Vec::new()) };
    /// When this thread last read its processor time.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The minimum interval between two such reads of a thread. Each is a system call, and takes half a microsecond.
const PAUSE: Duration = Duration::from_millis(1);

fn add(parts: &mut Parts, name: &'static str, took: Duration) {
    match parts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, total)) => *total += took,
        None => parts.push((name, took)),
    }
}

/// A view of a pipeline's stages that outlives it, and may be read from any thread.
#[derive(Debug, Clone, Default)]
pub struct Watch(Vec<Stage>);

#[derive(Debug, Clone)]
enum Stage {
    Threads(Arc<Counters>),
    /// The stages of the current one of [repeated](super::Pipeline::repeat) pipelines.
    Repeated(Arc<Mutex<Watch>>),
}

impl Watch {
    /// Returns the work of the stages so far, from the source on. Stages of repeated pipelines begin anew with each of them.
    ///
    /// Empty if no stage has threads: the consumer then does all the work.
    pub fn stages(&self) -> Vec<StageReport> {
        let stages = self.counters();
        stages.iter().enumerate().flat_map(|(stage, counters)| counters.reports(stage == 0)).collect()
    }

    /// Resets the reports, which then exclude the work done so far.
    pub fn restart(&self) {
        for counters in self.counters() {
            counters.sums.iter().for_each(|sum| sum.store(0, Ordering::Relaxed));
            lock(&counters.parts).clear();
        }
    }

    /// Returns the counters of the stages that currently have threads.
    fn counters(&self) -> Vec<Arc<Counters>> {
        let of_stage = |stage: &Stage| match stage {
            Stage::Threads(counters) => vec![Arc::clone(counters)],
            Stage::Repeated(current) => lock(current).counters(),
        };
        self.0.iter().flat_map(of_stage).collect()
    }

    /// Returns a view of consecutive pipelines, and the place for the view of the current one.
    pub(super) fn repeated() -> (Self, Arc<Mutex<Self>>) {
        let current = Arc::default();
        (Self(vec![Stage::Repeated(Arc::clone(&current))]), current)
    }

    pub(super) fn then(mut self, counters: &Arc<Counters>) -> Self {
        self.0.push(Stage::Threads(Arc::clone(counters)));
        self
    }

    pub(super) fn name_last(&self, name: &'static str) {
        if let Some(Stage::Threads(counters)) = self.0.last() {
            *lock(&counters.name) = name;
        }
    }
}

/// The counters: times in nanoseconds, and numbers of elements.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum {
    Elements,
    Busy,
    /// The time of the sampled elements, and the processor time for them.
    LookedAt,
    Processor,
    /// The wait for an element of the previous stage.
    Starved,
    /// The wait in the previous stage, without the wait of threads for each other.
    Pulled,
    /// The wait for space.
    Full,
    /// Elements that the consumer took, and ready elements that it left.
    Taken,
    Ready,
}

const SUMS: usize = Sum::Ready as usize + 1;

#[derive(Debug)]
pub(super) struct Counters {
    name: Mutex<&'static str>,
    /// The number of streams that are counted here, each with its own threads.
    streams: usize,
    pub(super) threads: AtomicUsize,
    pub(super) most_threads: AtomicUsize,
    sums: [AtomicU64; SUMS],
    parts: Mutex<Parts>,
}

impl Counters {
    pub(super) fn new(name: &'static str, streams: usize) -> Arc<Self> {
        Arc::new(Self {
            name: Mutex::new(name),
            streams,
            threads: AtomicUsize::new(1),
            most_threads: AtomicUsize::new(1),
            sums: Default::default(),
            parts: Mutex::default(),
        })
    }

    pub(super) fn add(&self, sum: Sum, amount: u64) {
        self.sums[sum as usize].fetch_add(amount, Ordering::Relaxed);
    }

    pub(super) fn spent(&self, on: Sum, time: Duration) {
        self.add(on, time.as_nanos() as u64);
    }

    pub(super) fn made<R>(&self, make: impl FnOnce() -> R) -> R {
        PARTS.with_borrow_mut(Vec::clear);
        let began = Instant::now();
        let is_due = LOOKED.get().is_none_or(|looked| began.duration_since(looked) > PAUSE);
        let processor = is_due.then(processor_time);
        let result = make();
        let took = began.elapsed();
        if let Some(before) = processor {
            LOOKED.set(Some(began));
            self.spent(Sum::LookedAt, took);
            self.spent(Sum::Processor, processor_time().saturating_sub(before));
        }
        self.spent(Sum::Busy, took);
        self.add(Sum::Elements, 1);
        PARTS.with_borrow_mut(|parts| {
            if !parts.is_empty() {
                let mut totals = lock(&self.parts);
                parts.drain(..).for_each(|(name, took)| add(&mut totals, name, took));
            }
        });
        result
    }

    /// Returns the report of the stage. The report of the source precedes that of the first stage, whose threads make the pulled elements themselves,
    /// one at a time.
    fn reports(&self, is_first: bool) -> Vec<StageReport> {
        let total = |sum: Sum| self.sums[sum as usize].load(Ordering::Relaxed);
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let [busy, starved, full] = [Sum::Busy, Sum::Starved, Sum::Full].map(|sum| total(sum) as f64);
        let all = busy + starved + full;
        let ratio = |part, of| share(total(part) as f64, total(of) as f64);
        let part = |&(name, took): &(&'static str, Duration)| (name, share(took.as_nanos() as f64, busy));
        let threads = self.threads.load(Ordering::Relaxed);
        let own = StageReport {
            name: *lock(&self.name),
            threads: threads * self.streams,
            most_threads: self.most_threads.load(Ordering::Relaxed) * self.streams,
            elements: total(Sum::Elements),
            busy: share(busy, all),
            starved: share(starved, all),
            full: share(full, all),
            processor: ratio(Sum::Processor, Sum::LookedAt).min(1.0),
            ready: ratio(Sum::Ready, Sum::Taken),
            parts: lock(&self.parts).iter().map(part).collect(),
        };
        if !is_first {
            return vec![own];
        }
        // The threads of a stream enter the source one at a time, so it is busy whenever one of them is in it.
        let busy = share(total(Sum::Pulled) as f64 * threads as f64, all).min(1.0);
        let source = StageReport {
            name: "source",
            threads: self.streams,
            most_threads: self.streams,
            elements: own.elements,
            busy,
            full: if all > 0.0 { 1.0 - busy } else { 0.0 },
            ..StageReport::default()
        };
        vec![source, own]
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Locks a mutex. No thread panics while it holds the lock.
#[doc(hidden)]
pub fn lock<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
