//! Ctrl-C during a call.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// How often a waiting thread lets Python run its signal handlers: for that it takes the interpreter's lock.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

thread_local! {
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a signal handler has raised during the current call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Makes calls without the interpreter's lock, during which Python's signal handlers run. What one of them raises, such as
/// KeyboardInterrupt, ends the call, and with it the communicator.
pub(crate) fn interruptible<R: Send>(
    py: Python<'_>,
    calls: impl FnOnce() -> unisono::Result<R> + Send,
) -> PyResult<R> {
    let done = py.detach(|| unisono::while_waiting(look, calls));
    match RAISED.take() {
        // The call may have succeeded all the same: the program hears of the signal either way.
        Some(raised) => Err(raised),
        None => done.map_err(|error| super::error::raised(&error)),
    }
}

/// Waits in steps, between which signal handlers run.
pub(crate) fn wait(py: Python<'_>, mut step: impl FnMut(Duration) -> bool + Send) -> PyResult<()> {
    while !py.detach(|| step(BETWEEN_LOOKS)) {
        py.check_signals()?;
    }
    Ok(())
}

fn look() -> Result<(), String> {
    let now = Instant::now();
    let due = LOOKED.get().is_none_or(|looked| now - looked >= BETWEEN_LOOKS);
    if !due {
        return Ok(());
    }
    LOOKED.set(Some(now));
    Python::attach(|py| {
        py.check_signals().map_err(|raised| {
            let text = raised.to_string();
            RAISED.set(Some(raised));
            text
        })
    })
}
