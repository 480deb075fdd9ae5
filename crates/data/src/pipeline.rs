//! The input pipeline: reads, maps, shuffles and batches elements ahead of the trainer, on background threads.
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
//! The output depends only on the input, the seed and the epoch, never on the number or speed of threads.
//!
//! - **Errors** keep their position: all elements before the error come first, then the error, then the end. Stages that hold elements back
//!   (`batch`, `shuffle`) forward an error at once and drop the elements that they hold.
//! - **A panic** on a thread resumes in the consumer, at its position.
//! - **Counters** show how each stage with threads spends its time ([`Pipeline::watch`]), and which stage is the [bottleneck].
//! - **Threads** start when a stage is built, and are joined when the pipeline is dropped, ends or fails. The join takes as long as the
//!   longest call in progress (of `map`'s function, or of the user's iterator).

mod ahead;
mod cache;
mod epochs;
mod governor;
mod interleave;
mod sharding;
mod shuffle;
mod watch;

use std::fmt;
use std::iter;
use std::mem;
use std::sync::Arc;
use std::thread;

use crate::error::DataError;
use ahead::Ahead;
pub use cache::Cached;
use epochs::Item;
use interleave::interleave;
pub use sharding::{Shard, Sharding};
use shuffle::shuffled;
use watch::Counters;
pub use watch::{StageReport, Watch, bottleneck, lock, part};

/// The number of threads of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Threads {
    /// Adjusted while running, up to one per core.
    ///
    /// While the consumer spends over a tenth of its time waiting, the stage tries a quarter more threads, at least one. It keeps them if they
    /// achieve at least a fifth of the ideal speed-up. It idles one when the consumer never waits and finished results accumulate. It repeats trials
    /// after pauses that double.
    #[default]
    Auto,
    /// As with `Auto`, up to this many, at least 1.
    AtMost(usize),
    /// This many, at least 1.
    Fixed(usize),
}

/// The maximum number of prefetched elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Depth {
    /// 2 at first. Doubles, up to 64, whenever the consumer finds none although all were ready before: the stage is then fast enough on average, but
    /// needs a reserve for slow elements.
    #[default]
    Auto,
    /// As with `Auto`, up to this many, at least 1.
    AtMost(usize),
    /// This many, at least 1.
    Fixed(usize),
}

/// Returns the maximum threads and depth of a [`map`](Pipeline::map) followed by a [`prefetch`](Pipeline::prefetch) that together hold at most this
/// many elements, including the consumer's. Returns `None` for less than [`LEAST_HELD`].
///
/// A thread may hold one element in progress and one finished element.
pub fn holding(elements: usize) -> Option<(Threads, Depth)> {
    let spare = elements.checked_sub(LEAST_HELD)?;
    let threads = (1 + spare / 2).min(cores());
    Some((Threads::AtMost(threads), Depth::AtMost((elements - 1 - 2 * threads).min(ahead::MOST_READY))))
}

/// The minimum number of elements that these stages hold: one in progress, one finished, one prefetched, and the consumer's.
pub const LEAST_HELD: usize = 4;

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A pipeline: an iterator that ends after its first error.
///
/// See the [module](self) for an example and for the properties of all stages.
pub struct Pipeline<T> {
    /// `None` once the pipeline and its threads have ended.
    elements: Option<Elements<T>>,
    watch: Watch,
}

type Elements<T> = Box<dyn Iterator<Item = Result<Item<T>, DataError>> + Send>;

impl<T: Send + 'static> Pipeline<T> {
    /// Creates a pipeline of the elements, or errors, of an iterator.
    pub fn new<I>(elements: I) -> Self
    where
        I: IntoIterator<Item = Result<T, DataError>, IntoIter: Send + 'static>,
    {
        let elements = elements.into_iter().map(|element| element.map(Item::Element));
        Self::stage(elements, Watch::default())
    }

    /// Creates a pipeline of an iterator that cannot fail, such as a list of files.
    pub fn of<I>(elements: I) -> Self
    where
        I: IntoIterator<Item = T, IntoIter: Send + 'static>,
    {
        Self::new(elements.into_iter().map(Ok))
    }

    /// Opens each element as a source of many elements, such as a file. Reads `at_once` of them at a time, each on its own thread, and returns their
    /// elements in round-robin order.
    ///
    /// When a source ends, the next one takes its place. `open` runs on the thread of its source.
    ///
    /// # Panics
    /// If `at_once` is 0.
    pub fn interleave<U, F>(self, at_once: usize, open: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<Pipeline<U>, DataError> + Send + Sync + 'static,
    {
        assert!(at_once > 0, "at least one source is open at a time");
        self.on_threads("interleave", at_once, |files, counters| interleave(files, at_once, open, counters))
    }

    /// Maps elements by `f` on several threads, in order.
    ///
    /// An error of `f` is returned with the element's index at this stage, from 0.
    ///
    /// # Panics
    /// If the number of threads is 0.
    pub fn map<U, F>(self, threads: Threads, f: F) -> Pipeline<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U, DataError> + Send + Sync + 'static,
    {
        let f = move |number, element| f(element).map_err(|error| error.in_element(number));
        self.on_threads("map", 1, |source, counters| Ahead::map(source, threads, f, counters))
    }

    /// Shuffles elements by seed and epoch: keeps a buffer of `buffer` elements, and returns a random one each time. An element may come any number
    /// of places later, but at most `buffer - 1` places earlier.
    ///
    /// `epoch` is the epoch of the first elements. Elements of different epochs do not mix. As the last elements of an epoch leave the buffer,
    /// elements of the next one replace them.
    ///
    /// To shuffle a whole data set uniformly, use the [order](super::Split::order) of its indices instead.
    ///
    /// # Panics
    /// If `buffer` is 0.
    pub fn shuffle(self, buffer: usize, seed: u64, epoch: u64) -> Self {
        assert!(buffer > 0, "the buffer holds at least one element");
        let watch = self.watch();
        Self::stage(shuffled(self, buffer, seed, epoch), watch)
    }

    /// Groups elements by `size`; the last group of an epoch may be smaller.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn batch(mut self, size: usize) -> Pipeline<Vec<T>> {
        assert!(size > 0, "a batch has at least one element");
        // `has_ended` is set from the end of an epoch until that end is forwarded.
        let (watch, mut has_ended) = (self.watch(), false);
        let next = move || {
            let mut batch = Vec::with_capacity(size);
            while !has_ended && batch.len() < size {
                match self.next_item() {
                    Some(Ok(Item::Element(element))) => batch.push(element),
                    Some(Ok(Item::EndOfEpoch)) => has_ended = true,
                    Some(Err(error)) => return Some(Err(error)),
                    None => break,
                }
            }
            if !batch.is_empty() {
                return Some(Ok(Item::Element(batch)));
            }
            mem::take(&mut has_ended).then_some(Ok(Item::EndOfEpoch))
        };
        Pipeline::stage(iter::from_fn(next), watch)
    }

    /// Prefetches elements on a background thread.
    ///
    /// # Panics
    /// If the depth is 0.
    pub fn prefetch(self, depth: Depth) -> Self {
        self.on_threads("prefetch", 1, |source, counters| Ahead::prefetch(source, depth, counters))
    }

    /// Skips the first `count` elements of the first epoch, which are still produced. Forwards an error among them.
    pub fn skip(self, count: usize) -> Self {
        self.keep(move |epoch, index| epoch > 0 || index >= count)
    }

    /// Ends after `count` elements.
    pub fn take(mut self, count: usize) -> Self {
        let (mut left, watch) = (count, self.watch());
        let next = move || {
            if left == 0 {
                return None;
            }
            let item = self.next_item()?;
            left -= usize::from(!matches!(item, Ok(Item::EndOfEpoch)));
            Some(item)
        };
        Self::stage(iter::from_fn(next), watch)
    }

    /// Keeps the elements of `rank` among `ranks`: element i of an epoch belongs to rank `i % ranks`. An error reaches all ranks.
    ///
    /// # Panics
    /// If `rank` is not below `ranks`.
    pub fn shard(self, rank: usize, ranks: usize) -> Self {
        assert!(rank < ranks, "rank {rank} of {ranks} ranks");
        self.keep(move |_, index| index % ranks == rank)
    }

    /// Keeps all errors, and the elements that are wanted by the number of their epoch and by their index in it, both from 0.
    fn keep(mut self, is_wanted: impl Fn(u64, usize) -> bool + Send + 'static) -> Self {
        let (watch, mut epoch, mut next) = (self.watch(), 0, 0);
        let wanted = move |item: &Result<Item<T>, DataError>| match item {
            Ok(Item::Element(_)) => {
                next += 1;
                is_wanted(epoch, next - 1)
            }
            Ok(Item::EndOfEpoch) => {
                (epoch, next) = (epoch + 1, 0);
                true
            }
            Err(_) => true,
        };
        Self::stage(iter::from_fn(move || self.next_item()).filter(wanted), watch)
    }
}

impl<T> Pipeline<T> {
    fn stage(
        elements: impl Iterator<Item = Result<Item<T>, DataError>> + Send + 'static,
        watch: Watch,
    ) -> Self {
        Self { elements: Some(Box::new(elements)), watch }
    }

    /// Adds a stage with threads, which `start` starts.
    fn on_threads<U, I>(
        self,
        name: &'static str,
        streams: usize,
        start: impl FnOnce(Self, Arc<Counters>) -> I,
    ) -> Pipeline<U>
    where
        I: Iterator<Item = Result<Item<U>, DataError>> + Send + 'static,
    {
        let counters = Counters::new(name, streams);
        let watch = self.watch().then(&counters);
        Pipeline::stage(start(self, counters), watch)
    }

    /// Names the last stage with threads in its [report](StageReport), instead of `map`, `interleave` or `prefetch`.
    pub fn named(self, name: &'static str) -> Self {
        self.watch.name_last(name);
        self
    }

    /// Returns a view of the stages of this pipeline.
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    fn next_item(&mut self) -> Option<Result<Item<T>, DataError>> {
        // Not restored after an error, the end or a panic, so that the threads end and no element follows.
        let mut elements = self.elements.take()?;
        let item = elements.next();
        if let Some(Ok(_)) = item {
            self.elements = Some(elements);
        }
        item
    }
}

/// The elements of all epochs.
impl<T> Iterator for Pipeline<T> {
    type Item = Result<T, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        iter::from_fn(|| self.next_item()).find_map(|item| item.map(Item::element).transpose())
    }
}

impl<T> fmt::Debug for Pipeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_ended = self.elements.is_none();
        f.debug_struct("Pipeline").field("has_ended", &has_ended).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
