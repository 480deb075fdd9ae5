//! The input pipeline: reads, maps, shuffles and batches elements ahead of the trainer, on background
//! threads.
//!
//! ```
//! use unisono_data::{DataError, Depth, Pipeline, Threads};
//!
//! let epochs = Pipeline::repeat(0..2, |epoch| {
//!     let squares = Pipeline::of(0..10_u64).map(Threads::Auto, |number| Ok(number * number));
//!     Ok(squares.shuffle(4, 7, epoch).batch(4).prefetch(Depth::Auto))
//! });
//! let batches = epochs.collect::<Result<Vec<_>, DataError>>()?;
//! assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2, 4, 4, 2]);
//! # Ok::<(), DataError>(())
//! ```
//!
//! The output depends only on the input, the seed and the epoch, never on the number or speed of
//! threads.
//!
//! - **Errors** keep their place: first all elements before the error, then the error, then the end. But stages that hold
//!   elements back (`batch`, `shuffle`) forward an error at once and drop what they hold.
//! - **A panic** on a thread resumes in the consumer, in its place.
//! - **Counters** say what each stage with threads spends its time on ([`Pipeline::watch`]), and so which one is the
//!   [bottleneck].
//! - **Threads** start when a stage is built, and are joined when the pipeline is dropped, ends or fails. That takes
//!   as long as the longest call in progress (of `map`'s function, or of the user's iterator).

mod ahead;
mod governor;
mod interleave;
mod watch;

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt;

use crate::error::DataError;
use crate::random::{SHUFFLE, keyed_rng};
use ahead::Ahead;
use interleave::Interleave;
use watch::Counters;
pub use watch::{StageReport, Watch, bottleneck, part};

/// The number of threads of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// Adjusted while running, up to one per core.
    ///
    /// While the consumer spends over a tenth of its time waiting, the stage tries a quarter more threads, at least one. It
    /// keeps them if they bring at least a fifth of the ideal gain. It idles one when the consumer never
    /// waits and finished results pile up. It repeats trials after pauses that double.
    #[default]
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

/// The maximum number of prefetched elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// 2 at first; doubles, up to 64, whenever the consumer finds none although all were ready before: the
    /// stage is then fast enough, but needs a reserve for slow elements.
    #[default]
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

/// A pipeline: an iterator that ends after its first error.
///
/// See the [module](self) for an example and for the properties of all stages.
pub struct Pipeline<T> {
    /// `None` once it has ended, and its threads with it.
    elements: Option<Elements<T>>,
    clock: Clock,
    watch: Watch,
}

type Elements<T> = Box<dyn Iterator<Item = Result<T, DataError>> + Send>;

/// A sum of times, counted by some threads and read by others, such as how long a consumer has waited.
#[derive(Debug, Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn add(&self, waited: Duration) {
        self.0.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    }

    fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn set(&self, waited: Duration) {
        self.0.store(waited.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl<T: Send + 'static> Pipeline<T> {
    /// The elements, or errors, of an iterator.
    pub fn new<I>(elements: I) -> Self
    where
        I: IntoIterator<Item = Result<T, DataError>, IntoIter: Send + 'static>,
    {
        Self::stage(elements.into_iter(), Clock::default(), Watch::default())
    }

    /// The elements of an iterator that cannot fail, such as a list of files.
    pub fn of<I>(elements: I) -> Self
    where
        I: IntoIterator<Item = T, IntoIter: Send + 'static>,
    {
        Self::new(elements.into_iter().map(Ok))
    }

    /// Chains pipelines: calls `make` for each epoch when the previous one has ended.
    ///
    /// Forwards an error of `make`, and ends.
    pub fn repeat<I, F>(epochs: I, mut make: F) -> Self
    where
        I: IntoIterator<Item = u64, IntoIter: Send + 'static>,
        F: FnMut(u64) -> Result<Self, DataError> + Send + 'static,
    {
        let clock = Clock::default();
        let (mut epochs, total) = (epochs.into_iter(), clock.clone());
        let (watch, watched) = Watch::repeated();
        let (mut current, mut before): (Option<Self>, _) = (None, Duration::ZERO);
        let next = move || {
            loop {
                if let Some(epoch) = &mut current {
                    let element = epoch.next();
                    total.set(before + epoch.stalled());
                    if element.is_some() {
                        return element;
                    }
                    before = total.read();
                }
                // The epoch's threads end before the next ones begin.
                current = None;
                match make(epochs.next()?) {
                    Ok(epoch) => {
                        watched.begin(epoch.watch());
                        current = Some(epoch);
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        Self::stage(iter::from_fn(next), clock, watch)
    }

    /// Opens each element as a source of many, such as a file: `at_once` of them at a time, each
    /// read on its own thread, in round-robin order: the first element of each, then the second of each, ….
    ///
    /// When one ends, the next takes its turn. `open` is called on the thread.
    ///
    /// # Panics
    ///
    /// If `at_once` is 0.
    pub fn interleave<U, F>(self, at_once: usize, open: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
    {
        assert!(at_once > 0, "at least one source is open at a time");
        let before = self.watch();
        let start = |clock, counters| Interleave::new(self, at_once, open, clock, counters);
        Pipeline::on_threads("interleave", at_once, before, start)
    }

    /// Maps elements by `f` on several threads, in order.
    ///
    /// An error of `f` is returned with the element's index at this stage, from 0.
    ///
    /// # Panics
    ///
    /// If the number of threads is 0.
    pub fn map<U, F>(self, threads: Threads, f: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U, DataError> + Send + Sync + 'static,
    {
        let f = move |number, element| f(element).map_err(|error| error.in_element(number));
        let before = self.watch();
        Pipeline::on_threads("map", 1, before, |clock, counters| {
            Ahead::map(self, threads, f, clock, counters)
        })
    }

    /// [`map`](Self::map), [`batch`](Self::batch) and a `map` of whole batches in one stage: a
    /// thread makes a whole batch, and takes locks only once for it.
    ///
    /// # Panics
    ///
    /// If `size` or the number of threads is 0.
    pub fn map_batch<U, V, F, C>(self, threads: Threads, size: usize, f: F, collate: C) -> Pipeline<V>
    where
        U: Send + 'static,
        V: Send + 'static,
        F: Fn(T) -> Result<U, DataError> + Send + Sync + 'static,
        C: Fn(Vec<U>) -> Result<V, DataError> + Send + Sync + 'static,
    {
        let whole = move |number: u64, group: Group<T>| {
            let numbered = (number * size as u64..).zip(group.elements);
            let mapped =
                numbered.map(|(number, element)| f(element).map_err(|error| error.in_element(number)));
            let mapped = mapped.collect::<Result<_, _>>()?;
            match group.error {
                Some(error) => Err(error),
                None => collate(mapped).map_err(|error| error.in_element(number)),
            }
        };
        let before = self.watch();
        let groups = Pipeline::of(self.groups(size));
        Pipeline::on_threads("map", 1, before, |clock, counters| {
            Ahead::map(groups, threads, whole, clock, counters)
        })
    }

    /// Shuffles elements by seed and epoch: keeps a buffer of `buffer` elements, and returns a random one
    /// each time. An element may come any time later, but at most `buffer - 1` places sooner.
    ///
    /// To shuffle a whole data set uniformly, use the [order](super::Split::order) of its indices instead.
    ///
    /// # Panics
    ///
    /// If `buffer` is 0.
    pub fn shuffle(mut self, buffer: usize, seed: u64, epoch: u64) -> Self {
        assert!(buffer > 0, "the buffer holds at least one element");
        let mut rng = keyed_rng(seed, SHUFFLE, epoch);
        let mut held = Vec::new();
        let (clock, watch) = (self.clock.clone(), self.watch());
        let next = move || {
            while held.len() < buffer {
                match self.next() {
                    Some(Ok(element)) => held.push(element),
                    Some(Err(error)) => return Some(Err(error)),
                    None => break,
                }
            }
            (!held.is_empty()).then(|| Ok(held.swap_remove(rng.random_range(0..held.len()))))
        };
        Self::stage(iter::from_fn(next), clock, watch)
    }

    /// Groups elements by `size`; the last group may be smaller.
    ///
    /// # Panics
    ///
    /// If `size` is 0.
    pub fn batch(self, size: usize) -> Pipeline<Vec<T>> {
        let (clock, watch) = (self.clock.clone(), self.watch());
        let whole = |group: Group<T>| group.error.map_or(Ok(group.elements), Err);
        Pipeline::stage(self.groups(size).map(whole), clock, watch)
    }

    fn groups(mut self, size: usize) -> impl Iterator<Item = Group<T>> + Send + 'static {
        assert!(size > 0, "a batch has at least one element");
        iter::from_fn(move || {
            let mut group = Group { elements: Vec::with_capacity(size), error: None };
            while group.elements.len() < size && group.error.is_none() {
                match self.next() {
                    Some(Ok(element)) => group.elements.push(element),
                    Some(Err(error)) => group.error = Some(error),
                    None => break,
                }
            }
            (group.error.is_some() || !group.elements.is_empty()).then_some(group)
        })
    }

    /// Prefetches elements on a background thread.
    ///
    /// # Panics
    ///
    /// If the depth is 0.
    pub fn prefetch(self, depth: Depth) -> Self {
        let before = self.watch();
        Self::on_threads("prefetch", 1, before, |clock, counters| {
            Ahead::prefetch(self, depth, clock, counters)
        })
    }

    /// Skips the first `count` elements, which are still produced. Forwards an error among them.
    pub fn skip(mut self, count: usize) -> Self {
        let (mut left, clock, watch) = (count, self.clock.clone(), self.watch());
        let next = move || {
            while left > 0 {
                match self.next()? {
                    Ok(_) => left -= 1,
                    Err(error) => return Some(Err(error)),
                }
            }
            self.next()
        };
        Self::stage(iter::from_fn(next), clock, watch)
    }

    /// Ends after `count` elements.
    pub fn take(self, count: usize) -> Self {
        let (clock, watch) = (self.clock.clone(), self.watch());
        Self::stage(Iterator::take(self, count), clock, watch)
    }

    /// Keeps the elements of `rank` among `ranks`: element i belongs to rank `i % ranks`. An error reaches all ranks.
    ///
    /// # Panics
    ///
    /// If `rank` is not below `ranks`.
    pub fn shard(self, rank: usize, ranks: usize) -> Self {
        assert!(rank < ranks, "rank {rank} of {ranks} ranks");
        let (clock, watch) = (self.clock.clone(), self.watch());
        let own = move |(index, element): &(usize, Result<T, _>)| index % ranks == rank || element.is_err();
        Self::stage(self.enumerate().filter(own).map(|(_, element)| element), clock, watch)
    }
}

impl<T> Pipeline<T> {
    fn stage(
        elements: impl Iterator<Item = Result<T, DataError>> + Send + 'static,
        clock: Clock,
        watch: Watch,
    ) -> Self {
        Self { elements: Some(Box::new(elements)), clock, watch }
    }

    /// A stage that `start` starts threads for.
    fn on_threads<I>(
        name: &'static str,
        streams: usize,
        before: Watch,
        start: impl FnOnce(Clock, Arc<Counters>) -> I,
    ) -> Self
    where
        I: Iterator<Item = Result<T, DataError>> + Send + 'static,
    {
        let (clock, counters) = (Clock::default(), Counters::new(name, &before, streams));
        let watch = before.then(&counters);
        Self::stage(start(clock.clone(), counters), clock, watch)
    }

    /// Names the last stage with threads in its [report](StageReport), instead of `map`, `interleave` or `prefetch`.
    pub fn named(self, name: &'static str) -> Self {
        self.watch.name_last(name);
        self
    }

    /// A view of the stages up to here.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// How long the consumer has waited so far for the last stage with threads.
    ///
    /// Zero if no stage has any: then the consumer's own thread does all the work.
    pub fn stalled(&self) -> Duration {
        self.clock.read()
    }
}

impl<T> Iterator for Pipeline<T> {
    type Item = Result<T, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Not put back after an error, the end or a panic, so that the threads end and nothing follows.
        let mut elements = self.elements.take()?;
        let element = elements.next();
        if let Some(Ok(_)) = element {
            self.elements = Some(elements);
        }
        element
    }
}

impl<T> fmt::Debug for Pipeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ended = self.elements.is_none();
        f.debug_struct("Pipeline").field("has_ended", &has_ended).field("stalled", &self.stalled()).finish()
    }
}

/// Elements of a growing batch, and the error that ended it early.
struct Group<T> {
    elements: Vec<T>,
    error: Option<DataError>,
}

#[cfg(test)]
mod tests;
