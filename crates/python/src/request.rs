//! Non-blocking and planned calls.

use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Instant;

use pyo3::prelude::*;
use unisono::Communicator;
use unisono_bindings::{InFlight, Owner, arguments};

use super::error::{argument, raised};
use super::interrupt;

/// A call in flight. Do not access its array until `wait` has returned.
#[pyclass(frozen, module = "unisono")]
pub(crate) struct Request {
    /// None once the result has been taken.
    call: Mutex<Option<Box<dyn InFlight>>>,
    owner: Owner,
}

impl Request {
    pub(crate) fn new<B: Send + 'static>(started: unisono::Request<B>) -> Self {
        Self { call: Mutex::new(Some(Box::new((started, drop)))), owner: Owner::this_process() }
    }
}

#[pymethods]
impl Request {
    /// Returns whether the call is done, so that wait() returns at once.
    #[getter]
    fn is_done(&self) -> PyResult<bool> {
        self.owner.check().map_err(argument)?;
        Ok(match self.call.try_lock() {
            Ok(call) => call.as_ref().is_none_or(|call| call.is_done()),
            Err(TryLockError::Poisoned(call)) => call.into_inner().as_ref().is_none_or(|call| call.is_done()),
            // Another thread waits for the call.
            Err(TryLockError::WouldBlock) => false,
        })
    }

    /// Waits until the call is done, at most this many seconds. Returns whether it is done.
    fn wait_for(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        self.owner.check().map_err(argument)?;
        let timeout = arguments::timeout(timeout).map_err(argument)?;
        let lock = || self.call.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, mut is_done) = (Instant::now(), false);
        interrupt::wait(py, |step| {
            let left = timeout.saturating_sub(began.elapsed());
            is_done = lock().as_ref().is_none_or(|call| call.wait_for(step.min(left)));
            is_done || began.elapsed() >= timeout
        })?;
        Ok(is_done)
    }

    /// Waits until the call is done. Raises the exception of the blocking call, once.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check().map_err(argument)?;
        let lock = || self.call.lock().unwrap_or_else(PoisonError::into_inner);
        interrupt::wait(py, |step| lock().as_ref().is_none_or(|call| call.wait_for(step)))?;
        let Some(call) = py.detach(|| lock().take()) else { return Ok(()) };
        call.wait().map_err(|error| raised(&error))
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let call = self.call.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        self.owner.free(call);
    }
}

/// A collective on an array, which is planned once and carried out many times.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct Plan(Mutex<Box<dyn unisono_bindings::Plan>>);

impl Plan {
    pub(crate) fn new(planned: Box<dyn unisono_bindings::Plan>) -> Self {
        Self(Mutex::new(planned))
    }

    /// Checks whether the call is started, as a call of the communicator requires.
    pub(crate) fn check(&self, is_started: bool) -> PyResult<()> {
        let planned = match self.0.try_lock() {
            Ok(planned) => planned,
            Err(TryLockError::Poisoned(planned)) => planned.into_inner(),
            // Another thread, or a call that a signal handler has interrupted.
            Err(TryLockError::WouldBlock) => return Err(argument("a call of the plan is in progress")),
        };
        match planned.is_started() == is_started {
            true => Ok(()),
            false if is_started => Err(argument("the planned call is not started")),
            false => Err(argument("the planned call is started already: wait for it first")),
        }
    }

    pub(crate) fn start(&self, comm: &mut Communicator) -> unisono::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).start(comm)
    }

    pub(crate) fn wait(&self, comm: &mut Communicator) -> unisono::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wait(comm)
    }
}
