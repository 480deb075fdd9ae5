//! Compressors: all-reduces that send fewer bytes between nodes.

use pyo3::prelude::*;
use unisono::DType;
use unisono_bindings::{Lent, Owner, arguments};
use unisono_compress::{Compression, UnknownCompression};

use super::array::Array;
use super::comm::{Comm, release};
use super::error::argument;
use super::interrupt::{Ended, InCall, check_not_interrupted};

/// Sums arrays of fixed size and meaning with fewer bytes between nodes, and keeps the residual for the next call.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct Compressor {
    /// Present until dropped.
    inner: Option<unisono_compress::Compressor>,
    count: usize,
    /// Identifies its calls.
    call: Ended,
    owner: Owner,
}

impl Compressor {
    fn inner(&self) -> PyResult<&unisono_compress::Compressor> {
        self.owner.check().map_err(argument)?;
        self.inner.as_ref().ok_or_else(|| argument("the compressor is closed"))
    }

    /// Uses the state, once no other thread makes a call, which may need the interpreter's lock meanwhile.
    fn state<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&unisono_compress::Compressor) -> R + Send,
    ) -> PyResult<R> {
        let inner = self.inner()?;
        check_not_interrupted(&self.call)?;
        Ok(py.detach(|| body(inner)))
    }
}

/// Returns the elements of an array of this many `f32`.
fn of_f32(array: &Array, count: usize) -> PyResult<Lent<f32>> {
    if (array.dtype, array.count) != (DType::F32, count) {
        let Array { count: found, dtype, .. } = array;
        return Err(argument(format!("the array has {found} {dtype}, and the compressor sums {count} f32")));
    }
    array.lent::<f32>()
}

#[pymethods]
impl Compressor {
    /// Creates a compressor of tensors of these shapes, one after the other in an array.
    #[new]
    fn new(py: Python<'_>, comm: &Comm, shapes: Vec<Vec<usize>>, format: &str, seed: u64) -> PyResult<Self> {
        let compression: Compression =
            format.parse().map_err(|error: UnknownCompression| argument(error.to_string()))?;
        let count = arguments::elements(&shapes).map_err(argument)?;
        compression.check(count).map_err(argument)?;
        let levels = comm.levels(py)?;
        let shapes: Vec<_> = shapes.iter().map(Vec::as_slice).collect();
        let inner = Some(unisono_compress::Compressor::new(&levels, compression, &shapes).with_seed(seed));
        Ok(Self { inner, count, call: Ended::default(), owner: Owner::this_process() })
    }

    fn all_reduce(&self, py: Python<'_>, comm: &Comm, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let inner = self.inner()?;
        let mut values = of_f32(&Array::new(array, false, true)?, self.count)?;
        check_not_interrupted(&self.call)?;
        let _call = InCall::of(&self.call);
        comm.on(py, move |comm| inner.all_reduce(comm, &mut values))
    }

    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    #[getter]
    fn was_finite(&self, py: Python<'_>) -> PyResult<bool> {
        self.state(py, unisono_compress::Compressor::was_finite)
    }

    fn residual(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut values = of_f32(&Array::new(array, false, true)?, self.count)?;
        self.state(array.py(), |inner| values.copy_from_slice(&inner.residual()))
    }

    /// Returns the encoder's state for each tensor, as lists of numbers; empty if it has none.
    fn encoder_state(&self, py: Python<'_>) -> PyResult<Vec<Vec<f32>>> {
        self.state(py, unisono_compress::Compressor::encoder_state)
    }

    fn restore(&self, residual: &Bound<'_, PyAny>, encoder_state: Vec<Vec<f32>>) -> PyResult<()> {
        let py = residual.py();
        let sizes = |state: &[Vec<f32>]| state.iter().map(Vec::len).collect::<Vec<_>>();
        let (saved, own) = (sizes(&encoder_state), sizes(&self.encoder_state(py)?));
        if saved != own {
            return Err(argument(format!(
                "the saved state has tensors of {saved:?} numbers, and that of this compressor {own:?}"
            )));
        }
        let residual = of_f32(&Array::new(residual, false, false)?, self.count)?;
        self.state(py, move |inner| inner.restore(&residual, &encoder_state))
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        release(self.owner, self.inner.take());
    }
}
