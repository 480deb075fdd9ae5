//! Non-blocking calls: requests, and the communication thread.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::collective::{Engine, Limits};
use crate::error::{Error, Result};

/// The number of times that a waiting thread yields before it sleeps, since waking up takes as long as many yields.
const YIELDS: usize = 200;
/// The time for which [`wait_any`] waits for one of several collectives before it polls all of them.
const PAUSE: Duration = Duration::from_micros(50);

/// A non-blocking call, which owns its buffer until it is done.
///
/// Dropping a request discards the result: the call still runs, since other ranks need it, and the buffer is freed when it is
/// done.
#[derive(Debug)]
pub struct Request<B> {
    outcome: Arc<Outcome<B>>,
    /// A driver that a waiting thread runs meanwhile, if the call needs it.
    driver: Option<Arc<dyn Driver>>,
}

/// Makes progress on calls while a thread waits for them.
pub(crate) trait Driver: std::fmt::Debug + Send + Sync {
    /// Drives calls until this returns true.
    fn drive_until(&self, is_done: &dyn Fn() -> bool);
}

/// The result of a call for its request.
#[derive(Debug)]
pub(crate) struct Outcome<B> {
    is_done: AtomicBool,
    flight: OnceLock<(Instant, Instant)>,
    result: Mutex<Option<Result<B>>>,
    done: Condvar,
}

impl<B> Outcome<B> {
    /// Ends a call that started at `began`.
    pub(crate) fn end(&self, began: Instant, result: Result<B>) {
        self.flight.get_or_init(|| (began, Instant::now()));
        *lock(&self.result) = Some(result);
        self.is_done.store(true, Ordering::Release);
        self.done.notify_all();
    }
}

impl<B> Request<B> {
    fn new(driver: Option<Arc<dyn Driver>>) -> Self {
        let (is_done, flight, result, done) = Default::default();
        Self { outcome: Arc::new(Outcome { is_done, flight, result, done }), driver }
    }

    /// Returns the request of a call that a driver progresses, and the outcome to set when it is done.
    pub(crate) fn driven_by(driver: Arc<dyn Driver>) -> (Self, Arc<Outcome<B>>) {
        let request = Self::new(Some(driver));
        let outcome = Arc::clone(&request.outcome);
        (request, outcome)
    }

    /// Returns whether the call is done (`MPI_Test`), so that [`Request::wait`] returns at once.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done.load(Ordering::Acquire)
    }

    /// Returns the start and end of the call, once it is done: of a collective on the communication thread, of a message from its
    /// start. This includes waits for other ranks, but not for earlier collectives in flight.
    pub fn flight(&self) -> Option<(Instant, Instant)> {
        self.outcome.flight.get().copied()
    }

    /// Waits until the call is done, without taking the buffer.
    pub fn wait_until_done(&self) {
        // The call has a deadline, so the wait ends.
        while !self.wait_for(Duration::MAX) {}
    }

    /// Waits until the call is done, but not longer than this; returns whether it is done.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        if let Some(driver) = &self.driver {
            let began = Instant::now();
            driver.drive_until(&|| self.is_done() || began.elapsed() >= timeout);
            return self.is_done();
        }
        for _ in 0..YIELDS {
            if self.is_done() {
                return true;
            }
            std::thread::yield_now();
        }
        let result = lock(&self.outcome.result);
        let waited = self.outcome.done.wait_timeout_while(result, timeout, |result| result.is_none());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.is_done()
    }

    /// Waits until the call is done, and returns the buffer (`MPI_Wait`).
    ///
    /// # Errors
    /// As the blocking call. The buffer is then lost, even if the call [was refused](Error::is_fatal) and the communicator
    /// remains usable.
    pub fn wait(self) -> Result<B> {
        self.wait_until_done();
        lock(&self.outcome.result).take().expect("a call that is done has a result")
    }
}

/// Waits until all calls are done, and returns their buffers in order (`MPI_Waitall`). Collectives and messages are waited for in the
/// same way.
///
/// ```
/// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
///     let other = 1 - comm.rank();
///     let mut requests = Vec::new();
///     for tag in 0..10_u32 {
///         requests.push(comm.call().tag(tag).receive_async(vec![0_u32; 100], other)?);
///     }
///     for tag in (0..10_u32).rev() {
///         requests.push(comm.call().tag(tag).send_async(vec![tag; 100], other)?);
///     }
///     let buffers = unisono::wait_all(requests)?;
///     assert!((0..10).all(|tag| buffers[tag] == [tag as u32; 100]));
///     Ok(())
/// });
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// ```
///
/// # Errors
/// The first error in the order of the requests, once all calls are done.
pub fn wait_all<B>(requests: impl IntoIterator<Item = Request<B>>) -> Result<Vec<B>> {
    let ended: Vec<_> = requests.into_iter().map(Request::wait).collect();
    ended.into_iter().collect()
}

/// Waits until one of the calls is done, and removes its request (`MPI_Waitany`). Returns its index before it was removed, and its
/// buffer; those after it move up. Of several that are done, it returns the first.
///
/// ```
/// let ended = unisono::threads(3, |mut comm| -> unisono::Result<()> {
///     if comm.rank() > 0 {
///         return comm.send(&[comm.rank() as u64], 0);
///     }
///     let mut sources = vec![1, 2];
///     let mut requests = vec![comm.receive_async(vec![0_u64], 1)?, comm.receive_async(vec![0_u64], 2)?];
///     while !requests.is_empty() {
///         let (index, received) = unisono::wait_any(&mut requests);
///         assert_eq!(received?, [sources.remove(index) as u64]);
///     }
///     Ok(())
/// });
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// ```
///
/// # Panics
/// If there is no request.
pub fn wait_any<B>(requests: &mut Vec<Request<B>>) -> (usize, Result<B>) {
    assert!(!requests.is_empty(), "there is no request to wait for");
    let done = |requests: &[Request<B>]| requests.iter().position(Request::is_done);
    let index = loop {
        if let Some(index) = done(requests) {
            break index;
        }
        match requests.iter().find_map(|request| request.driver.as_ref()) {
            Some(driver) => driver.drive_until(&|| done(requests).is_some()),
            None => drop(requests[0].wait_for(PAUSE)),
        }
    };
    (index, requests.remove(index).wait())
}

/// One call on the communication thread.
type Job = Box<dyn FnOnce(&mut Engine) + Send>;

/// Holds the engine while no call is in flight. Otherwise the communication thread holds it. So blocking calls run on the caller's
/// thread without a lock.
#[derive(Debug)]
pub(crate) struct EngineOwner {
    here: Option<Box<Engine>>,
    /// The deadlines of the engine while the communication thread holds it.
    limits: Limits,
    background: Option<Background>,
}

impl EngineOwner {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { limits: engine.limits, here: Some(Box::new(engine)), background: None }
    }

    /// Returns the engine, once no call is in flight.
    #[inline]
    pub(crate) fn engine(&mut self) -> &mut Engine {
        if self.here.is_none() {
            self.here = self.recall();
        }
        self.here.as_mut().expect("the engine is held here or by the communication thread")
    }

    /// Returns the engine, unless calls are in flight that this thread has not waited for.
    pub(crate) fn here(&self) -> Option<&Engine> {
        self.here.as_deref()
    }

    /// Like [`here`](Self::here), mutable.
    pub(crate) fn here_mut(&mut self) -> Option<&mut Engine> {
        self.here.as_deref_mut()
    }

    /// Returns the deadlines of calls of the engine, wherever it is held.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    #[cold]
    fn recall(&mut self) -> Option<Box<Engine>> {
        let mut engine = self.background.as_ref()?.recall();
        engine.transport.has_core_to_itself(true);
        Some(engine)
    }

    /// Runs `call` with the buffer on the communication thread, after all calls in flight.
    pub(crate) fn send<B: Send + 'static>(
        &mut self,
        mut buffer: B,
        call: impl FnOnce(&mut Engine, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Request<B>> {
        let background = match &mut self.background {
            Some(background) => background,
            none => none.insert(Background::start()?),
        };
        let request = Request::new(None);
        let outcome = Arc::clone(&request.outcome);
        let job: Job = Box::new(move |engine| {
            let began = Instant::now();
            let ran = catch_unwind(AssertUnwindSafe(|| call(engine, &mut buffer)));
            let ran = ran.unwrap_or_else(|panic| {
                let why = panic_text(&*panic).map_or(String::new(), |text| format!(": {text}"));
                Err(engine.fail(&format!("a collective in flight panicked{why}")))
            });
            outcome.end(began, ran.map(|()| buffer));
        });
        let mut state = background.lock();
        if let Some(mut engine) = self.here.take() {
            engine.transport.has_core_to_itself(false);
            self.limits = engine.limits;
            state.engine = Some(engine);
        }
        state.jobs.push_back(job);
        background.common.changed.notify_all();
        Ok(request)
    }
}

/// Returns the text of a panic, if it has one.
#[doc(hidden)]
pub fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

impl Drop for EngineOwner {
    fn drop(&mut self) {
        // Other ranks wait for the calls in flight. The engine is dropped on this thread, which may be panicking.
        if self.here.is_none() {
            self.here = self.recall();
        }
    }
}

/// The communication thread.
#[derive(Debug)]
struct Background {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Common {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The engine, unless a thread is using it.
    engine: Option<Box<Engine>>,
    jobs: VecDeque<Job>,
    ends: bool,
}

impl State {
    /// Returns the engine, if no job is queued.
    fn idle_engine(&mut self) -> Option<Box<Engine>> {
        if self.jobs.is_empty() { self.engine.take() } else { None }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).field("jobs", &self.jobs.len()).finish()
    }
}

impl Background {
    fn start() -> Result<Self> {
        let common = Arc::new(Common::default());
        let theirs = Arc::clone(&common);
        let thread = std::thread::Builder::new().name("communication".into()).spawn(move || theirs.serve());
        let failed = |cause| {
            Error::Unsupported(format!("cannot start the communication thread: {cause}; use blocking calls"))
        };
        Ok(Self { common, thread: Some(thread.map_err(failed)?) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.common.state)
    }

    /// Waits until all jobs are done, and returns the engine.
    fn recall(&self) -> Box<Engine> {
        // A result is ready slightly before the engine is idle.
        for _ in 0..YIELDS {
            if let Some(engine) = self.lock().idle_engine() {
                return engine;
            }
            std::thread::yield_now();
        }
        let mut state = self.lock();
        loop {
            if let Some(engine) = state.idle_engine() {
                return engine;
            }
            state = self.common.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Common {
    /// Runs jobs in order.
    fn serve(&self) {
        let mut state = lock(&self.state);
        while !state.ends {
            // The engine arrives with the first job, and stays until all jobs are done.
            let Some(job) = state.jobs.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut engine = state.engine.take().expect("jobs come with the engine");
            drop(state);
            job(&mut engine);
            state = lock(&self.state);
            state.engine = Some(engine);
            self.changed.notify_all();
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.lock().ends = true;
        self.common.changed.notify_all();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(matches!(ended, Some(Ok(()))), "jobs catch their panics");
    }
}

/// Locks a mutex whose value is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
