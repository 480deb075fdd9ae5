//! Calls of collectives, for elements of any type, and options of calls.

use pyo3::prelude::*;
use unisono::{Communicator, DType, with_type};
use unisono_bindings::device::OnGpu;
use unisono_bindings::{Collective, Options, arguments};

use super::Comm;
use crate::array::Array;
use crate::error::argument;
use crate::reduction::{check_elements, reduction};

pub(crate) fn options<'a>(
    algorithm: Option<&str>,
    label: Option<&'a str>,
    timeout: Option<f64>,
) -> PyResult<Options<'a>> {
    let algorithm = algorithm.map(arguments::choice).transpose().map_err(argument)?;
    let timeout = timeout.map(arguments::timeout).transpose().map_err(argument)?;
    Ok(Options { algorithm, label, timeout, ..Options::default() })
}

pub(super) fn message(tag: u32, label: Option<&str>, timeout: Option<f64>) -> PyResult<Options<'_>> {
    Ok(Options { tag, ..options(None, label, timeout)? })
}

impl Comm {
    /// Returns an operation, its array and its options, after checking them.
    pub(super) fn checked<'a>(
        &self,
        (name, op, root): (&str, Option<&Bound<'_, PyAny>>, Option<usize>),
        array: &Bound<'_, PyAny>,
        options: Options<'a>,
    ) -> PyResult<(Collective, Array, Options<'a>)> {
        if let Some(root) = root {
            arguments::rank(root, self.size, "root").map_err(argument)?;
        }
        let chosen = op.map(reduction).transpose()?;
        let operation = Collective::named(name, chosen, root).map_err(argument)?;
        let array = Array::new(array, operation.takes_any_type(), true)?;
        op.map_or(Ok(()), |op| check_elements(op, &array))?;
        operation.check(array.count, self.size, options.counts).map_err(argument)?;
        let element_bytes = array.element_bytes()?;
        Ok((operation, array, Options { element_bytes, ..options }))
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

    pub(super) fn on_gpu(
        &self,
        py: Python<'_>,
        (array, dtype): (OnGpu, DType),
        operation: Collective,
        options: Options<'_>,
    ) -> PyResult<()> {
        with_type!(dtype, T => {
            // SAFETY: the caller keeps the array alive until the call returns. Its work is then queued, and its library frees
            // memory in the order of the stream, as the documentation requires.
            self.on(py, move |comm| options.call(comm, |comm| unsafe { operation.on_gpu::<T>(comm, array) }))
        })
    }

    pub(super) fn group_of(&self, py: Python<'_>, group: Option<Communicator>) -> PyResult<Option<Py<Self>>> {
        group.map(|group| Py::new(py, Self::new(group))).transpose()
    }
}
