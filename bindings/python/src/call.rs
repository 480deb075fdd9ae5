//! Calls: their options, and the names of operations.

use std::time::Duration;

use pyo3::prelude::*;
use unisono::{Choice, Communicator, ReduceOp};
use unisono_bindings::Operation;

use super::error::argument;

/// Options of one call.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) algorithm: Option<Choice>,
    pub(crate) label: Option<String>,
    pub(crate) timeout: Option<Duration>,
}

impl Options {
    pub(crate) fn new(
        algorithm: Option<&str>,
        label: Option<String>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        Ok(Self {
            algorithm: algorithm.map(choice).transpose()?,
            label,
            timeout: timeout.map(seconds).transpose()?,
        })
    }

    /// Makes a call with these options.
    pub(crate) fn call<R>(self, comm: &mut Communicator, make: impl FnOnce(&mut Communicator) -> R) -> R {
        let Self { algorithm, label, timeout } = self;
        if algorithm.is_none() && label.is_none() && timeout.is_none() {
            return make(comm);
        }
        let mut call = comm.call();
        if let Some(choice) = algorithm {
            call = call.algorithm(choice);
        }
        if let Some(label) = label {
            call = call.label(&label);
        }
        if let Some(timeout) = timeout {
            call = call.timeout(timeout);
        }
        make(&mut call)
    }
}

/// The algorithm with this name.
pub(crate) fn choice(name: &str) -> PyResult<Choice> {
    name.parse().map_err(|error: unisono::select::InvalidChoice| argument(error.to_string()))
}

/// A timeout.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
    timeout.ok_or_else(|| argument(format!("a timeout of {seconds} s: it must be above 0")))
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
        _ => return Err(argument(format!("no operation is called {name:?}, with these arguments"))),
    })
}

/// Whether an operation only moves elements.
pub(crate) fn moves(operation: Operation) -> bool {
    !matches!(operation, Operation::AllReduce(_) | Operation::ReduceScatter(_) | Operation::Reduce(..))
}
