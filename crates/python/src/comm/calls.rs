//! Calls of collectives, for elements of any type.

use std::num::NonZero;

use pyo3::prelude::*;
use unisono::{Communicator, ReduceOp, with_type};
use unisono_bindings::{Operation, Options, arguments};

use super::Comm;
use crate::array::Array;
use crate::error::argument;
use crate::request::{Kept, Request};

impl Comm {
    /// Returns the operation with these arguments, after checking them.
    pub(super) fn operation(
        &self,
        name: &str,
        op: Option<ReduceOp>,
        root: Option<usize>,
    ) -> PyResult<Operation> {
        if let Some(root) = root {
            arguments::rank(root, self.size, "root").map_err(argument)?;
        }
        Operation::named(name, op, root).map_err(argument)
    }

    pub(super) fn blocking(
        &self,
        py: Python<'_>,
        array: &Array,
        operation: Operation,
        options: Options<'_>,
    ) -> PyResult<()> {
        operation.check(array.count, self.size, options.counts).map_err(argument)?;
        let options = Options { element_bytes: element_bytes(array, operation)?, ..options };
        if let Some(on_gpu) = array.on_gpu {
            return self.on_gpu(py, (on_gpu, array.dtype), operation, options);
        }
        with_type!(array.dtype, T => {
            let mut values = array.lent::<T>()?;
            self.on(py, move |comm| options.call(comm, |comm| operation.blocking(comm, &mut values)))
        })
    }

    pub(super) fn non_blocking(
        &self,
        py: Python<'_>,
        array: Array,
        operation: Operation,
        options: Options<'_>,
    ) -> PyResult<Request> {
        operation.check(array.count, self.size, options.counts).map_err(argument)?;
        let options = Options { element_bytes: element_bytes(&array, operation)?, ..options };
        with_type!(array.dtype, T => {
            let values = Kept::<T>::new(array)?;
            let started = self.on(py, move |comm| options.call(comm, |comm| operation.non_blocking(comm, values)))?;
            Ok(Request::new(Box::new(started)))
        })
    }

    /// Makes an all-to-all with these counts of sent and received elements.
    pub(super) fn exchange(
        &self,
        py: Python<'_>,
        sent: &Array,
        received: &Array,
        (to, from): (&[usize], &[usize]),
        options: Options<'_>,
    ) -> PyResult<()> {
        sent.check_same_elements(received)?;
        arguments::counts_of_pairs((sent.count, to), (received.count, from), (self.rank, self.size))
            .map_err(argument)?;
        let options = Options { element_bytes: sent.element_bytes()?, ..options };
        with_type!(sent.dtype, T => {
            let (values, mut place) = (sent.lent::<T>()?, received.lent::<T>()?);
            sent.check_apart(received)?;
            self.on(py, move |comm| {
                options.call(comm, |comm| comm.all_to_all_v(&values, to, &mut place, from).map(drop))
            })
        })
    }

    pub(super) fn group_of(&self, py: Python<'_>, group: Option<Communicator>) -> PyResult<Option<Py<Self>>> {
        group.map(|group| Py::new(py, Self::new(group))).transpose()
    }
}

/// Returns the size of the elements of a call, if the library does not have their type.
pub(super) fn element_bytes(array: &Array, operation: Operation) -> PyResult<Option<NonZero<u16>>> {
    let size = array.element_bytes()?;
    let (found, expected) = (size.map_or(1, NonZero::get), operation.element_bytes().map_or(1, NonZero::get));
    if operation.takes_any_type() && !operation.only_moves() && found != expected {
        return Err(argument(format!(
            "the reduction is of elements of {expected} values or bytes, and those of the array have {found}"
        )));
    }
    Ok(size)
}
