//! Registered memory, as a buffer.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use unisono::Registered;
use unisono_bindings::Owner;

/// Registered memory: bytes that the other ranks of the machine access in place. `Comm.empty` creates an array in it.
#[pyclass(frozen, module = "unisono")]
pub(crate) struct Memory {
    /// Present until dropped.
    words: Option<Registered<u64>>,
    address: usize,
    size_bytes: usize,
    owner: Owner,
}

impl Memory {
    pub(crate) fn new(mut words: Registered<u64>, size_bytes: usize) -> Self {
        let address = words.as_mut_ptr() as usize;
        Self { words: Some(words), address, size_bytes, owner: Owner::this_process() }
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.size_bytes
    }

    /// # Safety
    /// The view must be valid for writing, as Python guarantees.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let memory = slf.get();
        let (address, size) = (memory.address as *mut c_void, memory.size_bytes as ffi::Py_ssize_t);
        // SAFETY: the memory lives as long as this object, to which the view holds a reference. The program synchronises writes.
        let failed = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, size, 0, flags) };
        if failed == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.owner.free(self.words.take());
    }
}
