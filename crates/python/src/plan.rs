//! Planned calls.

use std::sync::{Mutex, PoisonError, TryLockError};

use pyo3::prelude::*;
use unisono::Communicator;

use super::error::argument;

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
