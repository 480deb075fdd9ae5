//! The module `unisono._unisono`: Unisono's communicators for Python.
//!
//! It is not linked with MPI. The package around it, in `python/unisono`, documents the public interface.

use pyo3::prelude::*;

mod array;
mod comm;
mod compressor;
mod error;
mod interrupt;
mod memory;
mod reduction;
mod request;
mod start;

#[pymodule]
fn _unisono(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    // This module also exports the functions of unisono.h, for PyTorch's backend, which is in C++.
    module.add("HEADER", unisono_c::HEADER)?;
    module.add_class::<comm::Comm>()?;
    module.add_class::<compressor::Compressor>()?;
    module.add_class::<array::GpuArray>()?;
    module.add_class::<array::TypedArray>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<request::Plan>()?;
    module.add_class::<reduction::Reduction>()?;
    module.add_class::<request::Request>()?;
    module.add_function(wrap_pyfunction!(start::launched, module)?)?;
    module.add_function(wrap_pyfunction!(start::gathered, module)?)?;
    module.add_function(wrap_pyfunction!(start::is_launched, module)?)?;
    module.add_function(wrap_pyfunction!(start::joined, module)?)?;
    interrupt::record_main_thread(module.py())?;
    error::add_to(module)
}
