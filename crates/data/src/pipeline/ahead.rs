//! The stage that prefetches: threads pull elements from the previous stage, process them, and store the results in order.
//!
//! No thread distributes work. Each thread pulls elements under a lock that also numbers them, so the position of a result is known before it is
//! computed.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::epochs::Item;
use super::governor::Governor;
use super::watch::{Counters, Sum, lock};
use super::{DataError, Depth, Pipeline, Threads, cores};

/// The default maximum of prefetched elements.
pub(super) const MOST_READY: usize = 64;

/// The outcome of an item: a result, or a panic that resumes in the consumer. The end of an epoch only occupies its position.
type Outcome<U> = Result<Result<Item<U>, DataError>, Box<dyn Any + Send>>;

type Make<T, U> = Box<dyn Fn(u64, T) -> Result<U, DataError> + Send + Sync>;

/// The consumer's handle to its threads.
pub(super) struct Ahead<T, U> {
    shared: Arc<Shared<T, U>>,
    threads: Vec<JoinHandle<()>>,
    /// The reason why no thread could be started.
    failure: Option<io::Error>,
    /// Decides how many threads work, unless the number is fixed.
    governor: Option<Governor>,
}

struct Shared<T, U> {
    source: Mutex<Source<T>>,
    make: Make<T, U>,
    state: Mutex<State<U>>,
    counters: Arc<Counters>,
    /// Signals space for another result, or the end.
    has_room: Condvar,
    /// Signals that the next result is ready, or the end.
    has_next: Condvar,
}

struct Source<T> {
    elements: Pipeline<T>,
    /// The number of items pulled: elements, and ends of epochs.
    pulled: u64,
    /// The number of elements among them.
    numbered: u64,
}

struct State<U> {
    ready: BTreeMap<u64, Outcome<U>>,
    begun: u64,
    taken: u64,
    /// The total number of results, once known.
    end: Option<u64>,
    /// The number of threads that work; the others are idle.
    active: usize,
    /// The number of results that may be in progress or ready, and the maximum to which it grows.
    room: u64,
    most_room: u64,
    /// Whether a thread found no room since the consumer last found no result: the threads were ahead of it.
    was_full: bool,
    is_stopped: bool,
}

impl<T: Send + 'static, U: Send + 'static> Ahead<T, U> {
    pub(super) fn map(
        source: Pipeline<T>,
        threads: Threads,
        make: impl Fn(u64, T) -> Result<U, DataError> + Send + Sync + 'static,
        counters: Arc<Counters>,
    ) -> Self {
        let (count, most) = match threads {
            Threads::Auto => (1, cores()),
            Threads::AtMost(most) => (most.min(1), most.min(cores())),
            Threads::Fixed(count) => (count, count),
        };
        assert!(count > 0, "a map needs at least one thread");
        let governor = (!matches!(threads, Threads::Fixed(_))).then(|| Governor::new(most));
        counters.most_threads.store(most, Ordering::Relaxed);
        Self::start(source, Box::new(make), count, ([room(count); 2], governor), counters)
    }

    fn start(
        source: Pipeline<T>,
        make: Make<T, U>,
        active: usize,
        (room, governor): ([u64; 2], Option<Governor>),
        counters: Arc<Counters>,
    ) -> Self {
        counters.threads.store(active, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            source: Mutex::new(Source { elements: source, pulled: 0, numbered: 0 }),
            make,
            state: Mutex::new(State::new(active, room)),
            counters,
            has_room: Condvar::new(),
            has_next: Condvar::new(),
        });
        let mut this = Self { shared, threads: vec![], failure: None, governor };
        this.spawn_workers(active);
        this
    }

    /// Starts threads until there are `count`, or as many as the system allows.
    fn spawn_workers(&mut self, count: usize) {
        while self.threads.len() < count {
            let (shared, number) = (Arc::clone(&self.shared), self.threads.len());
            match thread::Builder::new().name(format!("input {number}")).spawn(move || shared.work(number)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    tracing::warn!("{number} threads of the input pipeline instead of {count}: {error}");
                    self.failure = Some(error);
                    break;
                }
            }
        }
    }

    fn govern(&mut self, waited: Duration, ready: usize) {
        let Some(governor) = &mut self.governor else { return };
        let Some(active) = governor.observe(waited, ready) else { return };
        self.spawn_workers(active);
        let mut state = lock(&self.shared.state);
        state.active = active.min(self.threads.len());
        state.room = room(state.active);
        state.most_room = state.room;
        self.shared.counters.threads.store(state.active, Ordering::Relaxed);
        self.shared.has_room.notify_all();
    }
}

impl<T: Send + 'static> Ahead<T, T> {
    /// Starts one thread that passes elements on unchanged.
    pub(super) fn prefetch(source: Pipeline<T>, depth: Depth, counters: Arc<Counters>) -> Self {
        let room = match depth {
            Depth::Auto => [2, MOST_READY],
            Depth::AtMost(most) => [most.min(2), most],
            Depth::Fixed(depth) => [depth; 2],
        };
        assert!(room[0] > 0, "at least one element is prefetched");
        let room = room.map(|elements| elements as u64);
        Self::start(source, Box::new(|_, element| Ok(element)), 1, (room, None), counters)
    }
}

impl<T: Send + 'static, U: Send + 'static> Iterator for Ahead<T, U> {
    type Item = Result<Item<U>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.threads.is_empty() {
            let error = self.failure.take()?;
            return Some(Err(DataError::Thread { error }));
        }
        let asked = Instant::now();
        let mut state = lock(&self.shared.state);
        if !state.is_next_there() && state.grow() {
            self.shared.has_room.notify_all();
        }
        while !state.is_next_there() {
            state = wait(&self.shared.has_next, state);
        }
        let waited = asked.elapsed();
        let next = state.taken;
        let outcome = state.ready.remove(&next)?;
        state.taken += 1;
        let ready = state.ready.len();
        // `notify_one` might wake an idle thread.
        if state.active < self.threads.len() {
            self.shared.has_room.notify_all();
        } else {
            self.shared.has_room.notify_one();
        }
        drop(state);
        let counters = &self.shared.counters;
        if !matches!(outcome, Ok(Ok(Item::EndOfEpoch))) {
            counters.add(Sum::Taken, 1);
            counters.add(Sum::Ready, ready as u64);
            self.govern(waited, ready);
        }
        Some(outcome.unwrap_or_else(|panic| panic_again(panic)))
    }
}

/// Panics with the text of a panic on another thread. It is a new panic, so that hooks of this thread see it: Unisono's reports the text to other ranks.
fn panic_again(panic: Box<dyn Any + Send>) -> ! {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| panic.downcast_ref().copied()) {
        Some(text) => panic!("{text}"),
        None => resume_unwind(panic),
    }
}

impl<T, U> Drop for Ahead<T, U> {
    fn drop(&mut self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.has_room.notify_all();
        for thread in self.threads.drain(..) {
            // The threads catch panics of the source and of `make`.
            thread.join().expect("threads of the pipeline do not panic");
        }
    }
}

impl<T, U> Shared<T, U> {
    fn work(&self, thread: usize) {
        while self.begin(thread) {
            let Some((place, pulled)) = self.pull() else { return };
            let outcome = match pulled {
                Ok(Ok(Item::Element((number, element)))) => self.counters.made(|| {
                    catch_unwind(AssertUnwindSafe(|| (self.make)(number, element).map(Item::Element)))
                }),
                Ok(Ok(Item::EndOfEpoch)) => Ok(Ok(Item::EndOfEpoch)),
                Ok(Err(error)) => Ok(Err(error)),
                Err(panic) => Err(panic),
            };
            let mut state = lock(&self.state);
            state.ready.insert(place, outcome);
            if place == state.taken {
                self.has_next.notify_one();
            }
        }
    }

    /// Waits for space for a result. Returns false when no work is left.
    fn begin(&self, thread: usize) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.is_stopped || state.end.is_some() {
                return false;
            }
            if thread < state.active {
                if state.begun - state.taken < state.room {
                    state.begun += 1;
                    return true;
                }
                state.was_full = true;
            }
            let (is_active, began) = (thread < state.active, Instant::now());
            state = wait(&self.has_room, state);
            // The consumer does not block an idle thread.
            if is_active {
                self.counters.spent(Sum::Full, began.elapsed());
            }
        }
    }

    /// Returns the next element with its number and the position of its result; `None` after the last element, an error or a panic.
    fn pull(&self) -> Option<(u64, Outcome<(u64, T)>)> {
        let asked = Instant::now();
        let mut source = lock(&self.source);
        let (place, began) = (source.pulled, Instant::now());
        // After an error or a panic the source has ended, so the next pull returns `None`.
        let item = catch_unwind(AssertUnwindSafe(|| source.elements.next_item())).transpose();
        self.counters.spent(Sum::Pulled, began.elapsed());
        self.counters.spent(Sum::Starved, asked.elapsed());
        let Some(item) = item else {
            lock(&self.state).end = Some(place);
            self.has_next.notify_one();
            self.has_room.notify_all();
            return None;
        };
        source.pulled += 1;
        let number = source.numbered;
        let numbered = |item: Item<T>| item.map(|element| (number, element));
        let pulled = item.map(|item| item.map(numbered));
        source.numbered += u64::from(matches!(pulled, Ok(Ok(Item::Element(_)))));
        Some((place, pulled))
    }
}

impl<U> State<U> {
    fn new(active: usize, [room, most_room]: [u64; 2]) -> Self {
        Self {
            ready: BTreeMap::new(),
            begun: 0,
            taken: 0,
            end: None,
            active,
            room,
            most_room,
            was_full: false,
            is_stopped: false,
        }
    }

    /// Returns whether the next result, or the end, is known.
    fn is_next_there(&self) -> bool {
        self.end == Some(self.taken) || self.ready.contains_key(&self.taken)
    }

    /// Doubles the room for a consumer that finds no result although threads were ahead of it. Returns whether the room has grown.
    fn grow(&mut self) -> bool {
        let grows = mem::take(&mut self.was_full) && self.room < self.most_room;
        if grows {
            self.room = (2 * self.room).min(self.most_room);
        }
        grows
    }
}

/// Returns the maximum number of results in progress or ready: two per thread, so that a slow element that is next does not block the other threads.
fn room(threads: usize) -> u64 {
    (2 * threads).min(MOST_READY + threads) as u64
}

/// Waits for a signal. It always arrives: threads deliver a result in any case, and a dropped consumer signals the end.
fn wait<'a, S>(news: &Condvar, guard: MutexGuard<'a, S>) -> MutexGuard<'a, S> {
    news.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_grows_after_results_ran_out() {
        let mut growing = State::<()>::new(1, [2, MOST_READY as u64]);
        assert!(!growing.grow(), "the threads were never ahead");
        for expected in [4, 8, 16, 32, 64] {
            growing.was_full = true;
            assert!(growing.grow());
            assert_eq!(growing.room, expected);
            assert!(!growing.grow());
        }
        growing.was_full = true;
        assert!(!growing.grow());
        let mut fixed = State::<()>::new(1, [3, 3]);
        fixed.was_full = true;
        assert!(!fixed.grow());
        assert_eq!(fixed.room, 3);
    }
}
