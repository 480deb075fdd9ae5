//! What the stages of a pipeline spend their time on, and which of them holds the others up.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Clock;

/// What a stage has done so far. Its threads are busy, starved, or have no room for another result: the three shares add up
/// to 1 once it has begun.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StageReport {
    /// Its [name](super::Pipeline::named); `source` for what comes before the first stage with threads.
    pub name: &'static str,
    /// The number of threads that work.
    pub threads: usize,
    /// The number of threads that it may use: those that were asked for, or as many as there are cores.
    pub most_threads: usize,
    /// The elements that it has made.
    pub elements: u64,
    /// The share of its threads' time that they worked.
    pub busy: f64,
    /// The share of their time that they waited for the stage before.
    pub starved: f64,
    /// The share of their time that they waited for the consumer to make room.
    pub full: f64,
    /// The mean number of finished elements that the consumer left when it took one.
    pub ready: f64,
    /// The shares of the work of each [part], of the busy time.
    pub parts: Vec<(&'static str, f64)>,
}

/// The stage that holds the others up, if the consumer waits at all: the busiest.
pub fn bottleneck(stages: &[StageReport]) -> Option<&StageReport> {
    stages.iter().filter(|stage| stage.busy > 0.0).max_by(|a, b| a.busy.total_cmp(&b.busy))
}

/// Times a part of a stage's work, such as the decoding of an image, under a name of its own in the stage's
/// [report](StageReport::parts). Parts do not nest.
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
    /// The parts of the element that this thread is at.
    static PARTS: RefCell<Parts> = const { RefCell::new(Vec::new()) };
}

fn add(parts: &mut Parts, name: &'static str, took: Duration) {
    match parts.iter_mut().find(|(known, _)| *known == name) {
        Some((_, total)) => *total += took,
        None => parts.push((name, took)),
    }
}

/// A view of a pipeline's stages that outlives it, and may be read from any thread.
#[derive(Clone, Default)]
pub struct Watch(Vec<Stage>);

#[derive(Clone)]
enum Stage {
    Threads(Arc<Counters>),
    /// The stages of the current one of [repeated](super::Pipeline::repeat) pipelines.
    Repeated(Current),
}

impl Watch {
    /// What the stages have done so far, from the source on. Those of repeated pipelines begin anew with each of them.
    ///
    /// Empty if no stage has threads: then all work is the consumer's own.
    pub fn stages(&self) -> Vec<StageReport> {
        let reports = self.0.iter().flat_map(|stage| match stage {
            Stage::Threads(counters) => counters.reports(),
            Stage::Repeated(current) => lock(&current.0).stages(),
        });
        reports.collect()
    }

    /// The stages of pipelines that come one after the other, each of which is to be begun.
    pub(super) fn repeated() -> (Self, Current) {
        let current = Current::default();
        (Self(vec![Stage::Repeated(current.clone())]), current)
    }

    /// These stages, and then another.
    pub(super) fn then(mut self, counters: &Arc<Counters>) -> Self {
        self.0.push(Stage::Threads(Arc::clone(counters)));
        self
    }

    /// Names the last stage with threads.
    pub(super) fn name_last(&self, name: &'static str) {
        if let Some(Stage::Threads(counters)) = self.0.last() {
            *lock(&counters.name) = name;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.stages()).finish()
    }
}

/// The stages of one of repeated pipelines.
#[derive(Clone, Default)]
pub(super) struct Current(Arc<Mutex<Watch>>);

impl Current {
    pub(super) fn begin(&self, stages: Watch) {
        *lock(&self.0) = stages;
    }
}

/// What the threads of a stage count.
#[derive(Debug)]
pub(super) struct Counters {
    name: Mutex<&'static str>,
    /// Whether no stage with threads comes before: then what is pulled is made by these threads, one at a time.
    is_first: bool,
    /// How many streams count here, each with threads of its own.
    streams: usize,
    /// The threads of a stream.
    pub(super) threads: AtomicUsize,
    /// How many they may become.
    pub(super) most_threads: AtomicUsize,
    elements: AtomicU64,
    pub(super) busy: Clock,
    /// Waiting for elements, including `pulled`.
    pub(super) starved: Clock,
    /// In the iterator before, one thread at a time.
    pub(super) pulled: Clock,
    pub(super) full: Clock,
    taken: AtomicU64,
    ready: AtomicU64,
    parts: Mutex<Parts>,
}

impl Counters {
    pub(super) fn new(name: &'static str, before: &Watch, streams: usize) -> Arc<Self> {
        Arc::new(Self {
            name: Mutex::new(name),
            is_first: before.is_empty(),
            streams,
            threads: AtomicUsize::new(1),
            most_threads: AtomicUsize::new(1),
            elements: AtomicU64::new(0),
            busy: Clock::default(),
            starved: Clock::default(),
            pulled: Clock::default(),
            full: Clock::default(),
            taken: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            parts: Mutex::default(),
        })
    }

    /// Makes an element on this thread, and counts it.
    pub(super) fn made<R>(&self, make: impl FnOnce() -> R) -> R {
        PARTS.with_borrow_mut(Vec::clear);
        let began = Instant::now();
        let result = make();
        self.busy.add(began.elapsed());
        self.elements.fetch_add(1, Ordering::Relaxed);
        let parts = PARTS.with_borrow_mut(mem::take);
        if !parts.is_empty() {
            let mut totals = lock(&self.parts);
            parts.into_iter().for_each(|(name, took)| add(&mut totals, name, took));
        }
        result
    }

    /// The consumer took an element, and left `ready`.
    pub(super) fn took(&self, ready: usize) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.ready.fetch_add(ready as u64, Ordering::Relaxed);
    }

    /// The report of the stage, after that of the source if nothing else makes its elements.
    fn reports(&self) -> Vec<StageReport> {
        let seconds = |clock: &Clock| clock.read().as_secs_f64();
        let [busy, starved, full] = [&self.busy, &self.starved, &self.full].map(seconds);
        let all = busy + starved + full;
        let share = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let threads = self.threads.load(Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Relaxed);
        let parts =
            lock(&self.parts).iter().map(|(name, took)| (*name, share(took.as_secs_f64(), busy))).collect();
        let own = StageReport {
            name: *lock(&self.name),
            threads: threads * self.streams,
            most_threads: self.most_threads.load(Ordering::Relaxed) * self.streams,
            elements: self.elements.load(Ordering::Relaxed),
            busy: share(busy, all),
            starved: share(starved, all),
            full: share(full, all),
            ready: share(self.ready.load(Ordering::Relaxed) as f64, taken as f64),
            parts,
        };
        if !self.is_first {
            return vec![own];
        }
        // The threads of a stream take turns in the source, so it is busy as often as any of them is in it.
        let busy = share(seconds(&self.pulled) * threads as f64, all).min(1.0);
        let source = StageReport {
            name: "source",
            threads: self.streams,
            most_threads: self.streams,
            busy,
            starved: 0.0,
            full: if all > 0.0 { 1.0 - busy } else { 0.0 },
            ready: 0.0,
            parts: vec![],
            ..own.clone()
        };
        vec![source, own]
    }
}

fn lock<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::{Depth, Pipeline, Threads};
    use super::*;
    use crate::error::DataError;

    /// A pipeline that reads, decodes and augments, the stage with this name slowly, and a consumer that computes.
    fn stages(slow: &str, compute: Duration) -> (Vec<StageReport>, f64) {
        let sleeps = |name: &str| Duration::from_millis(if name == slow { 4 } else { 1 });
        let [read, decode, augment] = ["source", "decode", "augment"].map(sleeps);
        let rest = |element: u64, time| {
            thread::sleep(time);
            Ok::<_, DataError>(element)
        };
        let elements = Pipeline::new((0..20).map(move |element| rest(element, read)))
            .map(Threads::Fixed(1), move |element| part("pixels", || rest(element, decode)))
            .named("decode")
            .map(Threads::Fixed(2), move |element| rest(element, augment + augment))
            .named("augment")
            .prefetch(Depth::Auto);
        let (watch, began) = (elements.watch(), Instant::now());
        let mut waited = Duration::ZERO;
        let mut elements = elements;
        while elements.next().is_some() {
            waited = elements.stalled();
            thread::sleep(compute);
        }
        (watch.stages(), waited.as_secs_f64() / began.elapsed().as_secs_f64())
    }

    #[test]
    fn the_slow_stage_is_named_every_time() {
        for round in 0..20 {
            let slow = ["source", "decode", "augment"][round % 3];
            let (stages, waited) = stages(slow, Duration::ZERO);
            assert_eq!(bottleneck(&stages).expect("they worked").name, slow, "{stages:?}");
            assert!(waited > 0.5, "{waited}");
        }
    }

    #[test]
    fn shares_add_up_and_parts_are_of_their_stage() {
        let (stages, waited) = stages("", Duration::from_millis(12));
        assert_eq!(
            stages.iter().map(|stage| stage.name).collect::<Vec<_>>(),
            ["source", "decode", "augment", "prefetch"]
        );
        for stage in &stages {
            assert!((stage.busy + stage.starved + stage.full - 1.0).abs() < 1e-9, "{stage:?}");
            assert_eq!(stage.elements, 20);
        }
        assert!(matches!(stages[1].parts[..], [("pixels", share)] if share > 0.9), "{stages:?}");
        assert!(stages[3].ready > 0.0 && stages[2].full > 0.3, "{stages:?}");
        assert!(waited < 0.3, "{waited}");
    }

    #[test]
    fn files_that_are_read_side_by_side_count_as_one_stage() {
        let slow = |from: u64| {
            Pipeline::new((from..from + 5).map(|element| {
                thread::sleep(Duration::from_millis(2));
                Ok(element)
            }))
        };
        let epochs = Pipeline::repeat(0..2, move |_| {
            Ok(Pipeline::of([0, 10]).interleave(2, move |from| Ok(slow(from))))
        });
        let watch = epochs.watch();
        assert_eq!(epochs.map(Threads::Fixed(1), Ok).count(), 20);
        let stages = watch.stages();
        assert_eq!((stages.len(), stages[0].threads, stages[0].elements), (2, 2, 10), "{stages:?}");
        assert_eq!(bottleneck(&stages).expect("it worked").name, "source", "{stages:?}");
    }
}
