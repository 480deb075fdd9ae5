//! The stage that works ahead: threads pull elements from the previous stage, process them, and store
//! the results in order.
//!
//! No thread distributes work. Each pulls for itself, under a lock that also numbers the elements, so
//! a result has its place before it is computed.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::governor::{Governor, MOST_READY, Reserve};
use super::{Clock, DataError, Depth, Pipeline, Threads};

/// The outcome of an element: a result, or a panic that resumes in the consumer.
type Outcome<U> = Result<Result<U, DataError>, Box<dyn Any + Send>>;

/// The handle of the consumer to its threads.
pub(super) struct Ahead<T, U, F> {
    shared: Arc<Shared<T, U, F>>,
    threads: Vec<JoinHandle<()>>,
    /// Why there is no thread at all.
    failure: Option<io::Error>,
    /// Decides how many threads work, where they are not fixed.
    governor: Option<Governor>,
    clock: Clock,
}

struct Shared<T, U, F> {
    source: Mutex<Source<T>>,
    make: F,
    state: Mutex<State<U>>,
    /// There is room for another result, or a reason to end.
    has_room: Condvar,
    /// The next result is there, or the end.
    has_next: Condvar,
}

struct Source<T> {
    elements: Pipeline<T>,
    pulled: u64,
}

struct State<U> {
    /// Finished results by their number.
    ready: BTreeMap<u64, Outcome<U>>,
    /// How many results a thread has set out to make.
    begun: u64,
    /// How many results the consumer has taken.
    taken: u64,
    /// How many there are, once that is known.
    end: Option<u64>,
    /// How many of the threads work; the others rest.
    active: usize,
    reserve: Reserve,
    is_stopped: bool,
}

impl<T, U, F> Ahead<T, U, F>
where
    T: Send + 'static,
    U: Send + 'static,
    F: Fn(u64, T) -> Result<U, DataError> + Send + Sync + 'static,
{
    /// Threads that map the elements of `source`, given with their number.
    pub(super) fn map(source: Pipeline<T>, threads: Threads, make: F, clock: Clock) -> Self {
        let (count, governor) = match threads {
            Threads::Auto => (1, Some(Governor::new(cores()))),
            Threads::Fixed(count) => (count, None),
        };
        assert!(count > 0, "at least one thread maps");
        Self::start(source, make, count, governor, Reserve::fixed(room(count)), clock)
    }

    fn start(
        source: Pipeline<T>,
        make: F,
        count: usize,
        governor: Option<Governor>,
        reserve: Reserve,
        clock: Clock,
    ) -> Self {
        let state = State {
            ready: BTreeMap::new(),
            begun: 0,
            taken: 0,
            end: None,
            active: count,
            reserve,
            is_stopped: false,
        };
        let shared = Shared {
            source: Mutex::new(Source { elements: source, pulled: 0 }),
            make,
            state: Mutex::new(state),
            has_room: Condvar::new(),
            has_next: Condvar::new(),
        };
        let mut this = Self { shared: Arc::new(shared), threads: vec![], failure: None, governor, clock };
        this.employ(count);
        this
    }

    /// Starts threads until there are `count`, or as many as the system lets us have.
    fn employ(&mut self, count: usize) {
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

    /// Lets the governor see how it went, and does as it says.
    fn govern(&mut self, waited: Duration, ready: usize) {
        let Some(governor) = &mut self.governor else { return };
        let Some(active) = governor.observe(waited, ready) else { return };
        self.employ(active);
        let mut state = lock(&self.shared.state);
        state.active = active.min(self.threads.len());
        state.reserve = Reserve::fixed(room(state.active));
        self.shared.has_room.notify_all();
    }
}

impl<T: Send + 'static> Ahead<T, T, fn(u64, T) -> Result<T, DataError>> {
    /// One thread that takes elements as they are.
    pub(super) fn prefetch(source: Pipeline<T>, depth: Depth, clock: Clock) -> Self {
        let reserve = match depth {
            Depth::Auto => Reserve::growing(),
            Depth::Fixed(depth) => {
                assert!(depth > 0, "at least one element lies ready");
                Reserve::fixed(depth)
            }
        };
        Self::start(source, |_, element| Ok(element), 1, None, reserve, clock)
    }
}

impl<T, U, F> Iterator for Ahead<T, U, F>
where
    T: Send + 'static,
    U: Send + 'static,
    F: Fn(u64, T) -> Result<U, DataError> + Send + Sync + 'static,
{
    type Item = Result<U, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.threads.is_empty() {
            let error = self.failure.take()?;
            return Some(Err(DataError::Thread { error }));
        }
        let asked = Instant::now();
        let mut state = lock(&self.shared.state);
        if !state.is_next_there() && state.reserve.found_empty() {
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
        // Only where all threads work does any of them do.
        if state.active < self.threads.len() {
            self.shared.has_room.notify_all();
        } else {
            self.shared.has_room.notify_one();
        }
        drop(state);
        self.clock.add(waited);
        self.govern(waited, ready);
        Some(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<T, U, F> Drop for Ahead<T, U, F> {
    fn drop(&mut self) {
        lock(&self.shared.state).is_stopped = true;
        self.shared.has_room.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches the panics of others' code.
            thread.join().expect("no thread of the pipeline panics");
        }
    }
}

impl<T, U, F: Fn(u64, T) -> Result<U, DataError>> Shared<T, U, F> {
    /// What a thread does.
    fn work(&self, thread: usize) {
        while self.begin(thread) {
            let Some((number, element)) = self.pull() else { return };
            let make = |element| catch_unwind(AssertUnwindSafe(|| (self.make)(number, element)));
            let outcome = match element {
                Ok(Ok(element)) => make(element),
                Ok(Err(error)) => Ok(Err(error)),
                Err(panic) => Err(panic),
            };
            let mut state = lock(&self.state);
            state.ready.insert(number, outcome);
            if number == state.taken {
                self.has_next.notify_one();
            }
        }
    }

    /// Waits for room for a result, and says whether one is to be made.
    fn begin(&self, thread: usize) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.is_stopped || state.end.is_some() {
                return false;
            }
            if thread < state.active {
                if state.begun - state.taken < state.reserve.room() {
                    state.begun += 1;
                    return true;
                }
                state.reserve.found_full();
            }
            state = wait(&self.has_room, state);
        }
    }

    /// The next element and its number; none after the last, an error or a panic.
    fn pull(&self) -> Option<(u64, Outcome<T>)> {
        let mut source = lock(&self.source);
        let number = source.pulled;
        // A pipeline has ended after an error or a panic: whoever pulls next learns it here.
        match catch_unwind(AssertUnwindSafe(|| source.elements.next())).transpose() {
            Some(element) => {
                source.pulled += 1;
                Some((number, element))
            }
            None => {
                lock(&self.state).end = Some(number);
                self.has_next.notify_one();
                self.has_room.notify_all();
                None
            }
        }
    }
}

impl<U> State<U> {
    /// Whether the consumer need not wait: for its next result, or for the news that there is none.
    fn is_next_there(&self) -> bool {
        self.end == Some(self.taken) || self.ready.contains_key(&self.taken)
    }
}

/// How many results are in work or lie ready: two for each thread, so that the one in whose turn a slow element is
/// does not hold up the others.
fn room(threads: usize) -> usize {
    (2 * threads).min(MOST_READY + threads)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The lock; nobody panics while holding it.
fn lock<S>(mutex: &Mutex<S>) -> MutexGuard<'_, S> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for news. These come in any case: threads deliver whatever happens, and a consumer that is dropped says so.
fn wait<'a, S>(news: &Condvar, guard: MutexGuard<'a, S>) -> MutexGuard<'a, S> {
    news.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
