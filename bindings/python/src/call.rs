//! Calls: their options, and the names of operations.

use pyo3::prelude::*;
use unisono::ReduceOp;
use unisono_bindings::{Operation, Options, arguments};

use super::error::argument;

/// Options of one call.
pub(crate) fn options<'a>(
    algorithm: Option<&str>,
    label: Option<&'a str>,
    timeout: Option<f64>,
) -> PyResult<Options<'a>> {
    let algorithm = algorithm.map(arguments::choice).transpose().map_err(argument)?;
    let timeout = timeout.map(arguments::timeout).transpose().map_err(argument)?;
    Ok(Options { algorithm, label, timeout, ..Options::default() })
}

/// Options of one message.
pub(crate) fn message(tag: u32, label: Option<&str>, timeout: Option<f64>) -> PyResult<Options<'_>> {
    Ok(Options { tag, ..options(None, label, timeout)? })
}

/// The operation with this name. It takes a reduction if it reduces, and a root if it has one.
pub(crate) fn operation(name: &str, op: Option<ReduceOp>, root: Option<usize>) -> PyResult<Operation> {
    Ok(match (name, op, root) {
        ("all_reduce", Some(op), None) => Operation::AllReduce(op),
        ("reduce_scatter", Some(op), None) => Operation::ReduceScatter(op),
        ("all_gather", None, None) => Operation::AllGather,
        ("broadcast", None, Some(root)) => Operation::Broadcast(root),
        ("reduce", Some(op), Some(root)) => Operation::Reduce(op, root),
        ("gather", None, Some(root)) => Operation::Gather(root),
        ("scatter", None, Some(root)) => Operation::Scatter(root),
        ("all_to_all", None, None) => Operation::AllToAll,
        ("scan", Some(op), None) => Operation::Scan(op),
        ("exclusive_scan", Some(op), None) => Operation::ExclusiveScan(op),
        _ => return Err(argument(format!("no operation is called {name:?}, with these arguments"))),
    })
}
