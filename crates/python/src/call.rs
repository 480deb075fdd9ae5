//! Options of calls.

use pyo3::prelude::*;
use unisono_bindings::{Options, arguments};

use super::error::argument;

/// Returns the options of one call.
pub(crate) fn options<'a>(
    algorithm: Option<&str>,
    label: Option<&'a str>,
    timeout: Option<f64>,
) -> PyResult<Options<'a>> {
    let algorithm = algorithm.map(arguments::choice).transpose().map_err(argument)?;
    let timeout = timeout.map(arguments::timeout).transpose().map_err(argument)?;
    Ok(Options { algorithm, label, timeout, ..Options::default() })
}

/// Returns the options of one message.
pub(crate) fn message(tag: u32, label: Option<&str>, timeout: Option<f64>) -> PyResult<Options<'_>> {
    Ok(Options { tag, ..options(None, label, timeout)? })
}
