//! Non-blocking calls: requests, and the communication thread.

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use background::EngineOwner;

use crate::error::Result;
use crate::status::{StatusBoard, forget_panic, keep_panic};
use crate::while_waiting::{self, nap_after};

mod background;

/// The number of times that a waiting thread yields before it sleeps, since waking up takes as long as many yields.
const YIELDS: usize = 200;
/// The longest time between two steps of one wait.
const BETWEEN_STEPS: Duration = Duration::from_millis(1);
/// The time between two runs of the callback of a thread that waits for the communication thread.
const BETWEEN_CALLBACKS: Duration = Duration::from_micros(100);

/// A non-blocking call, which owns its buffer until it is done.
///
/// Dropping a request discards the result: the call still runs, since other ranks need it, and the buffer is freed when it is
/// done.
#[derive(Debug)]
pub struct Request<B> {
    outcome: Arc<Outcome<B>>,
    progress: Progress,
    /// The length of the wait so far, and the end of its last step. The next step continues it, so that a wait in short steps sleeps like a single one.
    steps: Mutex<Option<(Duration, Instant)>>,
}

/// The way in which a call makes progress while a thread waits for it.
#[derive(Debug)]
enum Progress {
    /// The waiting thread drives it.
    Driven(Arc<dyn Driver>),
    /// The communication thread carries it out, for the ranks of this status board.
    InBackground(StatusBoard),
}

/// Makes progress on calls while a thread waits for them.
pub(crate) trait Driver: std::fmt::Debug + Send + Sync {
    /// Drives calls until this returns true, in a wait that has already lasted this long, and sleeps at most for `nap` between polls. Returns whether a
    /// call has made progress.
    fn drive_until(&self, waited: Duration, nap: Duration, is_done: &dyn Fn() -> bool) -> bool;
}

/// The result of a call for its request.
#[derive(Debug)]
pub(crate) struct Outcome<B> {
    /// Set together with the result.
    flight: OnceLock<(Instant, Instant)>,
    result: Mutex<Option<Result<B>>>,
    done: Condvar,
}

impl<B> Outcome<B> {
    pub(crate) fn end(&self, began: Instant, result: Result<B>) {
        let mut ended = lock(&self.result);
        *ended = Some(result);
        self.flight.get_or_init(|| (began, Instant::now()));
        drop(ended);
        self.done.notify_all();
    }
}

impl<B> Request<B> {
    fn new(progress: Progress) -> Self {
        let (flight, result, done) = Default::default();
        Self { outcome: Arc::new(Outcome { flight, result, done }), progress, steps: Mutex::default() }
    }

    /// Returns the request of a call that a driver progresses, and the outcome to set when it is done.
    pub(crate) fn driven_by(driver: Arc<dyn Driver>) -> (Self, Arc<Outcome<B>>) {
        let request = Self::new(Progress::Driven(driver));
        let outcome = Arc::clone(&request.outcome);
        (request, outcome)
    }

    /// Returns whether the call is done (`MPI_Test`), so that [`Request::wait`] returns at once.
    pub fn is_done(&self) -> bool {
        self.outcome.flight.get().is_some()
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
        let Outcome { result, done, .. } = &*self.outcome;
        let began = Instant::now();
        // A thread that did other work in the meantime starts a new wait.
        let before =
            lock(&self.steps).filter(|(_, ended)| began.saturating_duration_since(*ended) < BETWEEN_STEPS);
        let waited = before.map_or(Duration::ZERO, |(waited, _)| waited);
        let has_moved = match &self.progress {
            Progress::Driven(driver) => {
                driver.drive_until(waited, timeout, &|| self.is_done() || began.elapsed() >= timeout)
            }
            Progress::InBackground(status) => {
                let yields = if waited.is_zero() { YIELDS } else { 0 };
                wait_until_ready((result, done), (yields, timeout), status, Option::is_some).is_some()
            }
        };
        let is_done = self.is_done();
        if !is_done {
            let ended = Instant::now();
            let waited = if has_moved { Duration::ZERO } else { waited + (ended - began) };
            *lock(&self.steps) = Some((waited, ended));
        }
        is_done
    }

    /// Waits until this returns true, which it does at the latest when the call is done. Meanwhile calls in flight make progress.
    #[doc(hidden)]
    pub fn wait_until(&self, is_done: &dyn Fn() -> bool) {
        let began = Instant::now();
        match &self.progress {
            Progress::Driven(driver) => {
                driver.drive_until(Duration::ZERO, Duration::MAX, is_done);
            }
            Progress::InBackground(_) => {
                while !is_done() {
                    self.wait_for(nap_after(began.elapsed()));
                }
            }
        }
    }

    /// Returns whether the thread that waits for the call drives it, and all others of this kind.
    #[doc(hidden)]
    pub fn is_driven(&self) -> bool {
        matches!(self.progress, Progress::Driven(_))
    }

    /// Waits until the call is done, and returns the buffer (`MPI_Wait`).
    ///
    /// # Errors
    /// As the blocking call. The buffer is then lost, even if the call [was refused](crate::Error::is_fatal) and the communicator
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
    let waits = requests.iter().find(|request| request.is_driven()).unwrap_or(&requests[0]);
    waits.wait_until(&|| done(requests).is_some());
    let index = done(requests).expect("the wait ends when a call is done");
    (index, requests.remove(index).wait())
}

/// Waits until a value of the communication thread is ready, which it signals by `changed`. First it yields, then it sleeps. Returns the locked value;
/// `None` after the timeout. Meanwhile it runs the callback of this thread, if it has one. An error of the callback ends the calls of these ranks, also
/// the one on the communication thread.
fn wait_until_ready<'a, T>(
    (value, changed): (&'a Mutex<T>, &Condvar),
    (yields, timeout): (usize, Duration),
    status: &StatusBoard,
    is_ready: impl Fn(&T) -> bool,
) -> Option<MutexGuard<'a, T>> {
    let began = Instant::now();
    for _ in 0..yields {
        let value = lock(value);
        if is_ready(&value) {
            return Some(value);
        }
        drop(value);
        std::thread::yield_now();
    }
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        let most = if while_waiting::is_set() { left.min(BETWEEN_CALLBACKS) } else { left };
        let waited = changed.wait_timeout_while(lock(value), most, |value| !is_ready(value));
        let (value, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if is_ready(&value) {
            return Some(value);
        }
        drop(value);
        if let Err(cause) = while_waiting::run() {
            status.give_up(status.rank(), &cause);
        }
        if began.elapsed() >= timeout {
            return None;
        }
    }
}

/// Returns the text of a panic, if it has one.
#[doc(hidden)]
pub fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied())
}

/// The panic of [`fail_reduction`], with the cause.
struct ReductionFailed(String);

/// Ends a call of this thread from the function of a custom reduction of a binding, on all ranks. Unlike a panic, it prints nothing, since the call
/// returns the cause.
#[doc(hidden)]
pub fn fail_reduction(cause: String) -> ! {
    // Other ranks get it as soon as this thread unwinds.
    keep_panic(cause.clone());
    resume_unwind(Box::new(ReductionFailed(cause)))
}

/// Returns the cause for which [`fail_reduction`] has ended a call; the panic if another one did.
pub(crate) fn cause_of_reduction(panic: Box<dyn Any + Send>) -> Result<String, Box<dyn Any + Send>> {
    let ReductionFailed(cause) = *panic.downcast()?;
    forget_panic();
    Ok(cause)
}

/// Locks a mutex whose value is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
