//! The start of worlds.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use unisono::Error;
use unisono::config::Launcher;
use unisono_bindings::{ByProgram, Settings};

use super::comm::{Comm, options};
use super::error::argument;
use super::interrupt::{Ended, interruptible};

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

/// Returns whether a launcher has started this process as a rank.
#[pyfunction]
pub(crate) fn is_launched() -> bool {
    Launcher::detect().starter.is_some()
}

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
    // The exception of the function.
    let raised = Arc::new(Mutex::new(None));
    let by_function = Arc::clone(&raised);
    let all_gather = move |own: &[u8]| {
        let gathered: PyResult<Vec<Vec<u8>>> = Python::attach(|py| {
            let all = all_gather.call1(py, (PyBytes::new(py, own),))?;
            all.extract(py)
        });
        gathered.map_err(|error: PyErr| {
            let text = format!("the all-gather of rank {rank} failed: {error}");
            *by_function.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            Error::Launch(text)
        })
    };
    let bootstrap = ByProgram { rank, ranks: size, all_gather };
    let started =
        interruptible(py, &Ended::default(), || settings.builder().bootstrap(bootstrap).processes());
    match raised.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(raised) => Err(raised),
        None => started.map(Comm::new),
    }
}
