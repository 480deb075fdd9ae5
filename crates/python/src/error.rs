//! Exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyType};

create_exception!(
    unisono,
    UnisonoError,
    PyRuntimeError,
    "An error of a call.\n\n`code` is its kind, such as \"mismatch\"; `rank` the rank that failed, or None; and `is_fatal` is whether the \
     communicator is lost. If not, the call was refused, and the communicator remains usable."
);
create_exception!(unisono, MismatchError, UnisonoError, "Ranks made different calls; the text names both.");
create_exception!(unisono, LeftError, UnisonoError, "Another rank closed its communicator.");
create_exception!(
    unisono,
    AbortedError,
    UnisonoError,
    "Another rank failed, or this one did in an earlier call."
);

/// `unisono.TimeoutError`, which is a `UnisonoError` and Python's own `TimeoutError`. `create_exception!` supports one base only.
fn timeout_error(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static TYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let made = TYPE.get_or_try_init(py, || {
        let bases = (py.get_type::<UnisonoError>(), py.get_type::<PyTimeoutError>());
        let attributes = [("__doc__", "Another rank did not arrive in time.")].into_py_dict(py)?;
        let class = py.get_type::<PyType>().call1(("TimeoutError", bases, attributes))?;
        Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
    })?;
    Ok(made.bind(py).clone())
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for (name, exception) in [
        ("UnisonoError", py.get_type::<UnisonoError>()),
        ("MismatchError", py.get_type::<MismatchError>()),
        ("TimeoutError", timeout_error(py)?),
        ("LeftError", py.get_type::<LeftError>()),
        ("AbortedError", py.get_type::<AbortedError>()),
    ] {
        exception.setattr("__module__", "unisono")?;
        module.add(name, exception)?;
    }
    Ok(())
}

pub(crate) fn raised(error: &unisono::Error) -> PyErr {
    let text = error.to_string();
    let exception = match error {
        unisono::Error::Mismatch { .. } => MismatchError::new_err(text),
        unisono::Error::Timeout { .. } | unisono::Error::Missing { .. } => Python::attach(|py| {
            timeout_error(py).map_or_else(|failed| failed, |class| PyErr::from_type(class, text))
        }),
        unisono::Error::Left { .. } => LeftError::new_err(text),
        unisono::Error::Aborted { .. } => AbortedError::new_err(text),
        _ => UnisonoError::new_err(text),
    };
    Python::attach(|py| {
        let value = exception.value(py);
        let named = || -> PyResult<()> {
            value.setattr("code", error.code().name())?;
            value.setattr("rank", error.failed_rank())?;
            value.setattr("is_fatal", error.is_fatal())
        };
        named().map_or_else(|failed| failed, |()| exception.clone_ref(py))
    })
}

pub(crate) fn argument(what: impl Into<String>) -> PyErr {
    PyValueError::new_err(what.into())
}
