//! The start of worlds.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use unisono::{Bootstrap, Error};
use unisono_bindings::Settings;

use super::call::options;
use super::comm::Comm;
use super::error::argument;
use super::interrupt::{Ended, interruptible};

/// Returns the settings of a world.
fn settings(algorithm: Option<&str>, tuning: Option<PathBuf>, timeout: Option<f64>) -> PyResult<Settings> {
    let options = options(algorithm, None, timeout)?;
    Ok(Settings { algorithm: options.algorithm, tuning, timeout: options.timeout })
}

/// Joins the world of processes that a launcher has started.
#[pyfunction]
#[pyo3(signature = (algorithm=None, tuning=None, timeout=None))]
pub(crate) fn launched(
    py: Python<'_>,
    algorithm: Option<&str>,
    tuning: Option<PathBuf>,
    timeout: Option<f64>,
) -> PyResult<Comm> {
    let settings = settings(algorithm, tuning, timeout)?;
    interruptible(py, &Ended::default(), || settings.builder().detect()).map(Comm::new)
}

/// Joins a growing world.
#[pyfunction]
#[pyo3(signature = (address, timeout=None))]
pub(crate) fn joined(py: Python<'_>, address: PathBuf, timeout: Option<f64>) -> PyResult<Comm> {
    let settings = settings(None, None, timeout)?;
    interruptible(py, &Ended::default(), || settings.builder().join(&address)).map(Comm::new)
}

/// Starts a world among processes that can gather bytes from each other: `all_gather(own)` returns the bytes of all ranks.
#[pyfunction]
#[pyo3(signature = (rank, size, all_gather, algorithm=None, tuning=None, timeout=None))]
pub(crate) fn gathered(
    py: Python<'_>,
    rank: usize,
    size: usize,
    all_gather: Py<PyAny>,
    algorithm: Option<&str>,
    tuning: Option<PathBuf>,
    timeout: Option<f64>,
) -> PyResult<Comm> {
    if rank >= size {
        return Err(argument(format!("rank {rank} is not one of {size}")));
    }
    let settings = settings(algorithm, tuning, timeout)?;
    let raised = Arc::default();
    let bootstrap = ByProgram { rank, ranks: size, all_gather, raised: Arc::clone(&raised) };
    let started =
        interruptible(py, &Ended::default(), || settings.builder().bootstrap(bootstrap).processes());
    match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(raised) => Err(raised),
        None => started.map(Comm::new),
    }
}

/// A bootstrap by a function of the program.
struct ByProgram {
    rank: usize,
    ranks: usize,
    all_gather: Py<PyAny>,
    /// The exception of the function.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Bootstrap for ByProgram {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> unisono::Result<Vec<Vec<u8>>> {
        Python::attach(|py| {
            let all = self.all_gather.call1(py, (PyBytes::new(py, own),))?;
            all.extract(py)
        })
        .map_err(|error: PyErr| {
            let text = format!("the all-gather of rank {} failed: {error}", self.rank);
            *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Error::Launch(text)
        })
    }
}
