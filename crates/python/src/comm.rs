//! Communicators.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PySlice;
use unisono::{Communicator, with_type};
use unisono_bindings::{Collective, Options, Owner, arguments, device};
use unisono_compress::Levels;

use super::array::Array;
use super::error::argument;
use super::interrupt::{Ended, check_not_interrupted, interruptible, is_interrupted};
use super::memory::Memory;
use super::request::{Plan, Request};

mod calls;
mod handle;

use calls::message;
pub(crate) use calls::options;
use handle::closed;
pub(crate) use handle::release;

/// The time in which a call of another thread must end before `close` ends it.
const TO_END: Duration = Duration::from_secs(1);

/// One rank's handle to a world of ranks, or to a group of them.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct Comm {
    /// None once closed.
    inner: Mutex<Option<Communicator>>,
    /// Present once there is a compressor.
    levels: Mutex<Option<Levels>>,
    ended: Ended,
    owner: Owner,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    size: usize,
    /// The link between ranks: "shm", "tcp" or both.
    #[pyo3(get)]
    transport: &'static str,
    /// The former number of each rank, before `shrink`; empty if `shrink` did not return this communicator.
    #[pyo3(get)]
    former_ranks: Vec<usize>,
}

#[pymethods]
impl Comm {
    #[pyo3(signature = (name, array, op=None, root=None, algorithm=None, label=None, timeout=None, counts=None))]
    #[expect(clippy::too_many_arguments, reason = "they are those of the methods in the package")]
    fn call(
        &self,
        py: Python<'_>,
        name: &str,
        array: &Bound<'_, PyAny>,
        op: Option<&Bound<'_, PyAny>>,
        root: Option<usize>,
        algorithm: Option<&str>,
        label: Option<&str>,
        timeout: Option<f64>,
        counts: Option<Vec<usize>>,
    ) -> PyResult<()> {
        let options = Options { counts: counts.as_deref(), ..options(algorithm, label, timeout)? };
        let (collective, array, options) = self.checked((name, op, root), array, options)?;
        if let Some(on_gpu) = array.on_gpu {
            return self.on_gpu(py, (on_gpu, array.dtype), collective, options);
        }
        let Collective { operation, op } = collective;
        with_type!(array.dtype, T => {
            let mut values = array.lent::<T>()?;
            self.on(py, move |comm| options.call(comm, |comm| comm.run(operation, op, &mut values).map(drop)))
        })
    }

    #[pyo3(signature = (name, array, op=None, root=None, algorithm=None, label=None, timeout=None, counts=None))]
    #[expect(clippy::too_many_arguments, reason = "they are those of the methods in the package")]
    fn start(
        &self,
        py: Python<'_>,
        name: &str,
        array: &Bound<'_, PyAny>,
        op: Option<&Bound<'_, PyAny>>,
        root: Option<usize>,
        algorithm: Option<&str>,
        label: Option<&str>,
        timeout: Option<f64>,
        counts: Option<Vec<usize>>,
    ) -> PyResult<Request> {
        let options = Options { counts: counts.as_deref(), ..options(algorithm, label, timeout)? };
        let (Collective { operation, op }, array, options) =
            self.checked((name, op, root), array, options)?;
        with_type!(array.dtype, T => {
            let values = array.kept::<T>()?;
            let started = self.on(py, move |comm| options.call(comm, |comm| comm.call_async(operation, op, values)))?;
            Ok(Request::new(started))
        })
    }

    #[pyo3(signature = (name, array, op=None, root=None, algorithm=None, label=None, timeout=None, counts=None))]
    #[expect(clippy::too_many_arguments, reason = "they are those of the methods in the package")]
    fn plan(
        &self,
        py: Python<'_>,
        name: &str,
        array: &Bound<'_, PyAny>,
        op: Option<&Bound<'_, PyAny>>,
        root: Option<usize>,
        algorithm: Option<&str>,
        label: Option<&str>,
        timeout: Option<f64>,
        counts: Option<Vec<usize>>,
    ) -> PyResult<Plan> {
        let options = Options { counts: counts.as_deref(), ..options(algorithm, label, timeout)? };
        let (Collective { operation, op }, array, options) =
            self.checked((name, op, root), array, options)?;
        with_type!(array.dtype, T => {
            let values = array.kept::<T>()?;
            let planned = self.on(py, move |comm| options.call(comm, |comm| comm.plan(operation, op, values)))?;
            Ok(Plan::new(Box::new(planned)))
        })
    }

    fn start_plan(&self, py: Python<'_>, plan: &Plan) -> PyResult<()> {
        plan.check(false)?;
        self.on(py, |comm| plan.start(comm))
    }

    fn wait_plan(&self, py: Python<'_>, plan: &Plan) -> PyResult<()> {
        plan.check(true)?;
        self.on(py, |comm| plan.wait(comm))
    }

    #[pyo3(signature = (sent, sent_counts, received, received_counts, label=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "they are those of the method in the package")]
    fn all_to_all_v(
        &self,
        py: Python<'_>,
        sent: &Bound<'_, PyAny>,
        sent_counts: Vec<usize>,
        received: &Bound<'_, PyAny>,
        received_counts: Vec<usize>,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (sent, received) = (Array::new(sent, true, false)?, Array::new(received, true, true)?);
        let counts = (&sent_counts[..], &received_counts[..]);
        self.exchange(py, &sent, &received, counts, options(None, label, timeout)?)
    }

    #[pyo3(signature = (label=None, timeout=None))]
    fn barrier(&self, py: Python<'_>, label: Option<&str>, timeout: Option<f64>) -> PyResult<()> {
        let options = options(None, label, timeout)?;
        self.on(py, |comm| options.call(comm, Communicator::barrier))
    }

    #[pyo3(signature = (stream, label=None, timeout=None))]
    fn gpu_barrier(
        &self,
        py: Python<'_>,
        stream: usize,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let options = options(None, label, timeout)?;
        // SAFETY: the stream belongs to the program, and exists, as the documentation requires.
        self.on(py, move |comm| options.call(comm, |comm| unsafe { device::barrier(comm, stream) }))
    }

    #[pyo3(signature = (stream, timeout=None))]
    fn gpu_synchronize(&self, py: Python<'_>, stream: usize, timeout: Option<f64>) -> PyResult<()> {
        let options = options(None, None, timeout)?;
        // SAFETY: as above.
        self.on(py, move |comm| options.call(comm, |comm| unsafe { device::synchronize(comm, stream) }))
    }

    #[pyo3(signature = (array, to, tag=0, label=None, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let to = self.other(to, "receiver")?;
        let (array, options) = (Array::new(array, true, false)?, message(tag, label, timeout)?);
        with_type!(array.dtype, T => {
            let values = array.lent::<T>()?;
            self.on(py, move |comm| options.call(comm, |comm| comm.send(&values, to)))
        })
    }

    /// Receives an array from a rank, or from the rank that sends first. Returns its number.
    #[pyo3(signature = (array, from_=None, tag=0, label=None, timeout=None))]
    fn receive(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        from_: Option<usize>,
        tag: u32,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let from = from_.map(|from| self.other(from, "sender")).transpose()?;
        if self.size == 1 {
            return Err(argument("a world of one rank has no messages to receive"));
        }
        let (array, options) = (Array::new(array, true, true)?, message(tag, label, timeout)?);
        with_type!(array.dtype, T => {
            let mut values = array.lent::<T>()?;
            self.on(py, move |comm| {
                options.call(comm, |comm| match from {
                    Some(from) => comm.receive(&mut values, from).map(|()| from),
                    None => comm.receive_any(&mut values),
                })
            })
        })
    }

    #[pyo3(signature = (array, to, tag=0, label=None, timeout=None))]
    fn send_async(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        to: usize,
        tag: u32,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let to = self.other(to, "receiver")?;
        let (array, options) = (Array::new(array, true, false)?, message(tag, label, timeout)?);
        with_type!(array.dtype, T => {
            let values = array.kept::<T>()?;
            let started = self.on(py, move |comm| options.call(comm, |comm| comm.send_async(values, to)))?;
            Ok(Request::new(started))
        })
    }

    #[pyo3(signature = (array, from_, tag=0, label=None, timeout=None))]
    fn receive_async(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        from_: usize,
        tag: u32,
        label: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let from = self.other(from_, "sender")?;
        let (array, options) = (Array::new(array, true, true)?, message(tag, label, timeout)?);
        with_type!(array.dtype, T => {
            let values = array.kept::<T>()?;
            let started = self.on(py, move |comm| options.call(comm, |comm| comm.receive_async(values, from)))?;
            Ok(Request::new(started))
        })
    }

    #[pyo3(signature = (color, key=0))]
    fn split(&self, py: Python<'_>, color: Option<usize>, key: i64) -> PyResult<Option<Py<Self>>> {
        let group = self.on(py, |comm| comm.split(color, key))?;
        self.group_of(py, group)
    }

    fn group(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<Option<Py<Self>>> {
        let ranks = arguments::members(&ranks, self.size).map_err(argument)?;
        let group = self.on(py, |comm| comm.group(&ranks))?;
        self.group_of(py, group)
    }

    fn grow(&self, py: Python<'_>, more: usize, address: PathBuf) -> PyResult<Self> {
        self.on(py, |comm| comm.grow(more, &address)).map(Self::new)
    }

    /// Creates a communicator of the ranks that are left, and closes this one.
    #[pyo3(signature = (minimum_ranks=None))]
    fn shrink(&self, py: Python<'_>, minimum_ranks: Option<usize>) -> PyResult<Self> {
        self.owner.check().map_err(argument)?;
        check_not_interrupted(&self.ended)?;
        // The end of this communicator does not end the next one.
        let shrunk = interruptible(py, &Ended::default(), || {
            drop(self.levels.lock().unwrap_or_else(PoisonError::into_inner).take());
            let failed = self.lock().take();
            let mut failed = failed.ok_or_else(closed)?;
            minimum_ranks.into_iter().for_each(|ranks| failed.set_minimum_ranks(ranks));
            failed.shrink()
        });
        shrunk.map(Self::new)
    }

    #[pyo3(signature = (count, counts=None))]
    fn own_part<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        counts: Option<Vec<usize>>,
    ) -> PyResult<Bound<'py, PySlice>> {
        if let Some(counts) = &counts {
            arguments::counts(counts, (count, self.size), "array").map_err(argument)?;
        }
        let options = Options { counts: counts.as_deref(), ..Options::default() };
        let own = self.on(py, |comm| options.call(comm, |comm| Ok(comm.own_part(count))))?;
        Ok(PySlice::new(py, own.start as isize, own.end as isize, 1))
    }

    fn memory(&self, py: Python<'_>, size_bytes: usize) -> PyResult<Memory> {
        let words = arguments::words(size_bytes).map_err(argument)?;
        let words = self.on(py, |comm| comm.alloc(words))?;
        Ok(Memory::new(words, size_bytes))
    }

    fn set_algorithm(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let choice = arguments::choice(name).map_err(argument)?;
        self.on(py, |comm| comm.set_choice(choice))
    }

    fn set_timeout(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = arguments::timeout(timeout).map_err(argument)?;
        self.on(py, |comm| {
            comm.set_timeout(timeout);
            Ok(())
        })
    }

    /// Declares that this rank cannot continue. A call on another thread, or one that a signal handler has interrupted, ends.
    fn fail(&self, py: Python<'_>, cause: &str) -> PyResult<()> {
        let _ = self.ended.set(cause.to_owned());
        if is_interrupted(&self.ended) {
            return Ok(());
        }
        self.on(py, |comm| {
            comm.fail(cause);
            Ok(())
        })
    }

    /// Leaves the world. A call that a signal handler has interrupted ends, and so does one of another thread that takes long.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.owner.check().map_err(argument)?;
        let is_in_call = || matches!(self.inner.try_lock(), Err(TryLockError::WouldBlock));
        let end = Instant::now() + TO_END;
        // A call of another thread may wait for a rank that never comes.
        while !is_interrupted(&self.ended) && is_in_call() && Instant::now() < end {
            py.detach(|| sleep(Duration::from_millis(1)));
        }
        if is_interrupted(&self.ended) || is_in_call() {
            return self.fail(py, "the communicator is closed");
        }
        interruptible(py, &self.ended, || {
            drop(self.levels.lock().unwrap_or_else(PoisonError::into_inner).take());
            drop(self.lock().take());
            Ok(())
        })
    }

    fn __repr__(&self) -> String {
        format!("<unisono.Comm: rank {} of {}, {}>", self.rank, self.size, self.transport)
    }
}
