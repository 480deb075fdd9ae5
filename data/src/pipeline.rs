//! A pipeline of elements on their way to the trainer: read, mapped, shuffled and batched ahead of time, on threads
//! of their own.
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
//! What comes out follows from what goes in, the seed and the epoch; never from how many threads there are or how
//! fast they happen to be.
//!
//! - **Errors** come in their place: all elements before one, then it, then the end. But the stages that hold
//!   elements back (`batch`, `shuffle`) hand on an error at once, without what they hold.
//! - **A panic** on a thread is taken to the consumer, in its place, and goes on there.
//! - **Threads** start when a stage is made, and are joined when the pipeline is dropped, ends or fails. That takes
//!   as long as the longest call in progress (of `map`'s function, or of the user's iterator).

mod ahead;
mod governor;
mod interleave;

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

/// How many threads a stage works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// As many as help, up to one for each core, found out while it runs.
    ///
    /// A quarter more, and at least one, is tried while the consumer spends over a tenth of its time waiting. They
    /// are kept if they bring at least a fifth of what they would at best. One is sent to rest when the consumer never
    /// waits and finished results lie about. What was tried is tried again after pauses that double.
    #[default]
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

/// How many elements lie ready, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// 2 at first; twice as many, up to 64, whenever the consumer finds none although all were ready before: then
    /// what is missing is not speed but a reserve for the slow ones.
    #[default]
    Auto,
    /// This many, at least 1.
    Fixed(usize),
}

/// Elements on their way: an iterator that ends after its first error.
///
/// See the [module](self) for an example and for what holds of all stages.
pub struct Pipeline<T> {
    /// Gone once it has ended; with it go its threads.
    elements: Option<Elements<T>>,
    clock: Clock,
}

type Elements<T> = Box<dyn Iterator<Item = Result<T, DataError>> + Send>;

/// How long a consumer has waited, counted by one stage and read by all after it.
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
        Self::stage(elements.into_iter(), Clock::default())
    }

    /// The elements of an iterator that cannot fail, such as a list of files.
    pub fn of<I>(elements: I) -> Self
    where
        I: IntoIterator<Item = T, IntoIter: Send + 'static>,
    {
        Self::new(elements.into_iter().map(Ok))
    }

    /// One pipeline after the other: `make` is called for each epoch when the one before has ended.
    ///
    /// An error of `make` is handed on, and is the end.
    pub fn repeat<I, F>(epochs: I, mut make: F) -> Self
    where
        I: IntoIterator<Item = u64, IntoIter: Send + 'static>,
        F: FnMut(u64) -> Result<Self, DataError> + Send + 'static,
    {
        let clock = Clock::default();
        let (mut epochs, total) = (epochs.into_iter(), clock.clone());
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
                    Ok(epoch) => current = Some(epoch),
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        Self::stage(iter::from_fn(next), clock)
    }

    /// Takes each element for something that holds many, such as a file; opens `at_once` of them at a time, each
    /// read on a thread of its own, and takes turns: the first element of each, then the second of each, ….
    ///
    /// Where one ends, the next takes its turn. `open` is called on the thread.
    ///
    /// # Panics
    ///
    /// If `at_once` is 0.
    pub fn interleave<U, F>(self, at_once: usize, open: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
    {
        assert!(at_once > 0, "at least one file is read at a time");
        let clock = Clock::default();
        Pipeline::stage(Interleave::new(self, at_once, open, clock.clone()), clock)
    }

    /// Maps elements by `f`, on threads; they stay in order.
    ///
    /// An error of `f` is told with the element's number, counted from 0 at this stage.
    ///
    /// # Panics
    ///
    /// If there are to be 0 threads.
    pub fn map<U, F>(self, threads: Threads, f: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U, DataError> + Send + Sync + 'static,
    {
        let f = move |number, element| f(element).map_err(|error| error.in_element(number));
        let clock = Clock::default();
        Pipeline::stage(Ahead::map(self, threads, f, clock.clone()), clock)
    }

    /// [`map`](Self::map), [`batch`](Self::batch) and another `map` that makes one value of a batch, all in one: a
    /// thread makes a whole batch, and takes and gives others' locks once for it.
    ///
    /// # Panics
    ///
    /// If `size` is 0, or there are to be 0 threads.
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
        let clock = Clock::default();
        let groups = Pipeline::of(self.groups(size));
        Pipeline::stage(Ahead::map(groups, threads, whole, clock.clone()), clock)
    }

    /// Hands on elements in another order, drawn from seed and epoch: keeps `buffer` of them, and of these one at
    /// random each time. An element may so come any time later, but at most `buffer - 1` places sooner.
    ///
    /// To shuffle all of a data set alike, draw its indices in [order](super::Split::order) instead.
    ///
    /// # Panics
    ///
    /// If `buffer` is 0.
    pub fn shuffle(mut self, buffer: usize, seed: u64, epoch: u64) -> Self {
        assert!(buffer > 0, "a buffer has room for at least one element");
        let mut rng = keyed_rng(seed, SHUFFLE, epoch);
        let mut held = Vec::new();
        let clock = self.clock.clone();
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
        Self::stage(iter::from_fn(next), clock)
    }

    /// Groups elements by `size`; the last group may be smaller.
    ///
    /// # Panics
    ///
    /// If `size` is 0.
    pub fn batch(self, size: usize) -> Pipeline<Vec<T>> {
        let clock = self.clock.clone();
        let whole = |group: Group<T>| group.error.map_or(Ok(group.elements), Err);
        Pipeline::stage(self.groups(size).map(whole), clock)
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

    /// Makes elements ahead of time, on a thread of its own.
    ///
    /// # Panics
    ///
    /// If the depth is 0.
    pub fn prefetch(self, depth: Depth) -> Self {
        let clock = Clock::default();
        Self::stage(Ahead::prefetch(self, depth, clock.clone()), clock)
    }

    /// Leaves out the first `count` elements; they are made all the same. An error among them is handed on.
    pub fn skip(mut self, count: usize) -> Self {
        let (mut left, clock) = (count, self.clock.clone());
        let next = move || {
            while left > 0 {
                match self.next()? {
                    Ok(_) => left -= 1,
                    Err(error) => return Some(Err(error)),
                }
            }
            self.next()
        };
        Self::stage(iter::from_fn(next), clock)
    }

    /// Ends after `count` elements.
    pub fn take(self, count: usize) -> Self {
        let clock = self.clock.clone();
        Self::stage(Iterator::take(self, count), clock)
    }

    /// Keeps what is `rank`'s among `ranks`: element i is rank `i % ranks`'s. An error is everybody's.
    ///
    /// # Panics
    ///
    /// If `rank` is not below `ranks`.
    pub fn shard(self, rank: usize, ranks: usize) -> Self {
        assert!(rank < ranks, "there is no rank {rank} among {ranks}");
        let clock = self.clock.clone();
        let own = move |(index, element): &(usize, Result<T, _>)| index % ranks == rank || element.is_err();
        Self::stage(self.enumerate().filter(own).map(|(_, element)| element), clock)
    }
}

impl<T> Pipeline<T> {
    fn stage(elements: impl Iterator<Item = Result<T, DataError>> + Send + 'static, clock: Clock) -> Self {
        Self { elements: Some(Box::new(elements)), clock }
    }

    /// How long the consumer has waited so far for the last stage that has threads.
    ///
    /// Nothing where no stage has any: then the consumer's own thread does all the work.
    pub fn stalled(&self) -> Duration {
        self.clock.read()
    }
}

impl<T> Iterator for Pipeline<T> {
    type Item = Result<T, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Not put back after an error, an end or a panic, so that threads end there and nothing follows.
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

/// Elements on their way into a batch, and the error that ended it early.
struct Group<T> {
    elements: Vec<T>,
    error: Option<DataError>,
}

#[cfg(test)]
mod tests;
