//! Cancellation of a call by Ctrl-C, or by `fail` on another thread.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::error::raised;

/// The interval at which a waiting thread acquires the interpreter's lock to let Python run its signal handlers.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The cause for which a communicator ends, if one of its threads has ended it.
pub(crate) type Ended = Arc<OnceLock<String>>;

/// The thread on which Python runs signal handlers.
static MAIN: OnceLock<ThreadId> = OnceLock::new();

thread_local! {
    static POLLED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
    /// The exception that a signal handler has raised during the current call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// The calls on this thread. A signal handler that interrupts one may make another, of another communicator.
    static CALLS: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
    /// Whether the function of a reduction runs on this thread.
    static REDUCES: Cell<bool> = const { Cell::new(false) };
}

/// A call on this thread, until it is dropped.
pub(crate) struct InCall(());

impl InCall {
    /// Records a call that `owner` identifies.
    pub(crate) fn of(owner: &Ended) -> Self {
        CALLS.with_borrow_mut(|calls| calls.push(Arc::clone(owner)));
        Self(())
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        CALLS.with_borrow_mut(Vec::pop);
    }
}

/// Runs the function of a reduction.
pub(crate) fn reducing<R>(function: impl FnOnce() -> R) -> R {
    let outer = REDUCES.replace(true);
    let reduced = function();
    REDUCES.set(outer);
    reduced
}

/// Returns whether this thread is in a call of `owner`, which a signal handler or the function of a reduction interrupts. The function may run on
/// the thread of non-blocking calls, which does not know their owner.
pub(crate) fn is_interrupted(owner: &Ended) -> bool {
    CALLS.with_borrow(|calls| match &calls[..] {
        [] => REDUCES.get(),
        calls => calls.iter().any(|call| Arc::ptr_eq(call, owner)),
    })
}

/// # Errors
/// If this thread is in a call of `owner`, which cannot end before this one.
pub(crate) fn check_not_interrupted(owner: &Ended) -> PyResult<()> {
    if !is_interrupted(owner) {
        return Ok(());
    }
    let text = "a signal handler or the function of a reduction has interrupted a call, and cannot make another one: set a flag, or \
                raise an exception";
    Err(raised(&unisono::Error::Setting(text.to_owned())))
}

/// Records this thread as Python's main thread, if it is.
pub(crate) fn record_main_thread(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let main: usize = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
    if threading.call_method0("get_ident")?.extract::<usize>()? == main {
        MAIN.get_or_init(|| thread::current().id());
    }
    Ok(())
}

/// Makes calls without the interpreter's lock, during which Python's signal handlers run. An exception of a handler, such as
/// KeyboardInterrupt, ends the call, as `ended` does. The calls may be complete nevertheless. The caller then ends the
/// communicator.
pub(crate) fn interruptible<R: Send>(
    py: Python<'_>,
    ended: &Ended,
    calls: impl FnOnce() -> unisono::Result<R> + Send,
) -> PyResult<R> {
    let done = py.detach(|| {
        let _call = InCall::of(ended);
        unisono::while_waiting(poll, calls)
    });
    // A signal after the last poll, or during a call that never waited, counts too.
    match RAISED.take().or_else(|| py.check_signals().err()) {
        Some(raised) => Err(raised),
        None => done.map_err(|error| raised(&error)),
    }
}

/// Waits in steps, between which signal handlers run.
pub(crate) fn wait(py: Python<'_>, mut step: impl FnMut(Duration) -> bool + Send) -> PyResult<()> {
    while !py.detach(|| step(POLL_INTERVAL)) {
        py.check_signals()?;
    }
    Ok(())
}

fn poll() -> Result<(), String> {
    let ended = || CALLS.with_borrow(|calls| calls.last()?.get().cloned()).map_or(Ok(()), Err);
    ended()?;
    if MAIN.get().is_some_and(|main| *main != thread::current().id()) {
        return Ok(());
    }
    let now = Instant::now();
    if POLLED_AT.get().is_some_and(|polled_at| now - polled_at < POLL_INTERVAL) {
        return Ok(());
    }
    POLLED_AT.set(Some(now));
    Python::attach(|py| {
        py.check_signals().map_err(|raised| {
            let text = raised.to_string();
            RAISED.set(Some(raised));
            text
        })
    })?;
    // A handler may have ended the communicator.
    ended()
}
