//! The creation, use and release of the handle.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use unisono::Communicator;
use unisono_bindings::{Owner, arguments};
use unisono_compress::Levels;

use super::Comm;
use crate::error::{UnisonoError, argument};
use crate::interrupt::{Ended, check_not_interrupted, interruptible};
use crate::reduction::raised;

impl Comm {
    pub(crate) fn new(inner: Communicator) -> Self {
        let (rank, size, transport) = (inner.rank(), inner.ranks(), inner.transport());
        let former_ranks = inner.former_ranks().to_vec();
        let (inner, ended, owner) = (Mutex::new(Some(inner)), Ended::default(), Owner::this_process());
        Self { inner, levels: Mutex::new(None), ended, owner, rank, size, transport, former_ranks }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Communicator>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the groups of compressors. All ranks call it.
    pub(crate) fn levels(&self, py: Python<'_>) -> PyResult<Levels> {
        self.on(py, |comm| {
            let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(levels) = &*levels {
                return Ok(levels.clone());
            }
            Ok(levels.insert(Levels::of(comm)?).clone())
        })
    }

    /// Uses the communicator without the interpreter's lock. A panic or an exception of a signal handler loses the communicator.
    pub(crate) fn on<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Communicator) -> unisono::Result<R> + Send,
    ) -> PyResult<R> {
        self.owner.check().map_err(argument)?;
        check_not_interrupted(&self.ended)?;
        let mut by_reduction = None;
        let done = interruptible(py, &self.ended, || {
            let mut inner = self.lock();
            let comm = inner.as_mut().ok_or_else(closed)?;
            catch_unwind(AssertUnwindSafe(|| body(comm))).unwrap_or_else(|panic| {
                let error = comm.error_of_reduction(panic).unwrap_or_else(|panic| {
                    comm.fail("a defect of unisono");
                    resume_unwind(panic)
                });
                by_reduction = raised();
                Err(error)
            })
        });
        if let Some(raised) = by_reduction {
            return Err(raised);
        }
        // A signal handler has raised an exception. The progress of the call is unknown, so no call may follow.
        let cause = match &done {
            Err(raised) if !raised.is_instance_of::<UnisonoError>(py) => Some(raised.to_string()),
            // A call that has not waited does not end by itself.
            _ => self.ended.get().cloned(),
        };
        if let Some(cause) = cause {
            py.detach(|| self.lock().as_mut().map(|comm| comm.fail(&cause)));
        }
        done
    }

    /// Returns the number of another rank.
    pub(super) fn other(&self, number: usize, what: &str) -> PyResult<usize> {
        arguments::other(number, (self.rank, self.size), what).map_err(argument)
    }
}

pub(super) fn closed() -> unisono::Error {
    unisono::Error::Setting("the communicator is closed".to_owned())
}

impl Drop for Comm {
    fn drop(&mut self) {
        let levels = self.levels.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if inner.is_some() {
            release(self.owner, (levels, inner));
        }
    }
}

/// Drops a handle without the interpreter's lock, since calls in flight, for which this waits, may need it for the function of a
/// reduction.
pub(crate) fn release<T: Send>(owner: Owner, handle: T) {
    Python::attach(|py| py.detach(|| owner.free(handle)));
}
