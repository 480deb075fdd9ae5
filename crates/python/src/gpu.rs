//! Calls on arrays in GPU memory.

use pyo3::prelude::*;
use unisono::{DType, with_type};
use unisono_bindings::device::{self, OnGpu};
use unisono_bindings::{Operation, Options};

use super::call::options;
use super::comm::Comm;

impl Comm {
    /// Makes a call on an array in GPU memory.
    pub(crate) fn on_gpu(
        &self,
        py: Python<'_>,
        (array, dtype): (OnGpu, DType),
        operation: Operation,
        options: Options<'_>,
    ) -> PyResult<()> {
        with_type!(dtype, T => {
            // SAFETY: the caller keeps the array alive until the call returns. Its work is then queued, and its library frees
            // memory in the order of the stream, as the documentation requires.
            self.on(py, move |comm| options.call(comm, |comm| unsafe { operation.on_gpu::<T>(comm, array) }))
        })
    }
}

/// Orders the streams of all ranks.
#[pyfunction]
#[pyo3(signature = (comm, stream, label=None, timeout=None))]
pub(crate) fn gpu_barrier(
    py: Python<'_>,
    comm: &Comm,
    stream: usize,
    label: Option<&str>,
    timeout: Option<f64>,
) -> PyResult<()> {
    let options = options(None, label, timeout)?;
    // SAFETY: the stream belongs to the program, and exists, as the documentation requires.
    comm.on(py, move |comm| options.call(comm, |comm| unsafe { device::barrier(comm, stream) }))
}

/// Waits until the work on a stream is done.
#[pyfunction]
#[pyo3(signature = (comm, stream, timeout=None))]
pub(crate) fn gpu_synchronize(
    py: Python<'_>,
    comm: &Comm,
    stream: usize,
    timeout: Option<f64>,
) -> PyResult<()> {
    let options = options(None, None, timeout)?;
    // SAFETY: as above.
    comm.on(py, move |comm| options.call(comm, |comm| unsafe { device::synchronize(comm, stream) }))
}
