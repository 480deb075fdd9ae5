//! Messages with tags, any number in flight at once, as PyTorch has them.
//!
//! A communicator's own messages go one after the other, and have no tags. So each pair of ranks has a world of two for each
//! direction, which starts with the first message, and a thread at either end: no message waits for one between other ranks.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::prelude::*;
use unisono::Communicator;
use unisono_bindings::{Lent, Owner};

use super::error::{argument, raised};
use super::interrupt::{Ended, endable};
use super::start::ByProgram;

mod header;
mod inbox;

use header::Header;
use inbox::Inbox;

/// How long a message may take. A program's own timeouts end its waits sooner.
const PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Why messages in flight end.
const SHUT_DOWN: &str = "the process group was shut down";

/// Sends and receives messages among the ranks of a world. `all_gather_of(sender, receiver, own)` gathers bytes from the two.
#[pyclass(frozen, module = "unisono._unisono")]
pub(crate) struct Mailbox {
    rank: usize,
    size: usize,
    connect: Arc<Connect>,
    outboxes: Mutex<HashMap<usize, Sender<Place>>>,
    inbox: Arc<Inbox>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    owner: Owner,
}

/// How a world of two starts, and when it ends.
struct Connect {
    all_gather_of: Py<PyAny>,
    ended: Ended,
}

/// The memory of a message, which the program holds until it is done.
struct Place {
    address: usize,
    header: Header,
    /// Called with the sender and the error, or None, once the message is done.
    done: Py<PyAny>,
}

impl Place {
    /// Bytes at an address, of elements of a kind.
    fn new((address, size_bytes, kind): (usize, usize, String), tag: i64, done: Py<PyAny>) -> Self {
        Self { address, header: Header::new(tag, size_bytes, &kind), done }
    }

    /// The bytes of the message.
    ///
    /// # Safety
    /// The program has them until the message is done.
    unsafe fn bytes(&self) -> PyResult<Lent<u8>> {
        // SAFETY: as the caller promises.
        unsafe { Lent::new(self.address as *mut _, self.header.size_bytes) }.map_err(argument)
    }

    /// Tells the program.
    fn end(self, from: usize, result: PyResult<()>) {
        Python::attach(|py| {
            let error = result.err().map(|error| error.into_value(py));
            if let Err(error) = self.done.call1(py, (from, error)) {
                error.write_unraisable(py, None);
            }
        });
    }
}

impl Connect {
    /// Joins the world of a sender (rank 0) and a receiver (rank 1). It waits for the other.
    fn join(&self, rank: usize, (sender, receiver): (usize, usize)) -> unisono::Result<Communicator> {
        let all_gather = Python::attach(|py| -> PyResult<Py<PyAny>> {
            let partial = py.import("functools")?.getattr("partial")?;
            Ok(partial.call1((&self.all_gather_of, sender, receiver, rank))?.unbind())
        });
        let all_gather = all_gather.map_err(|error| unisono::Error::Launch(error.to_string()))?;
        let builder = unisono::Unisono::builder().timeout(PATIENCE);
        builder.bootstrap(ByProgram { rank, ranks: 2, all_gather }).processes()
    }
}

/// Sends messages, in order.
fn serve_outbox(connect: &Connect, pair: (usize, usize), messages: &Receiver<Place>) {
    let mut comm = connect.join(0, pair);
    while let Ok(place) = messages.recv() {
        let sent = match &mut comm {
            Ok(comm) => endable(&connect.ended, || send(comm, &place)),
            Err(error) => Err(raised(error)),
        };
        place.end(pair.0, sent);
    }
}

fn send(comm: &mut Communicator, place: &Place) -> PyResult<()> {
    // SAFETY: the program holds the memory until `end`.
    let bytes = unsafe { place.bytes() }?;
    let sent = comm.send(&place.header.encoded(), 1).and_then(|()| match bytes.len() {
        0 => Ok(()),
        _ => comm.send(&bytes, 1),
    });
    sent.map_err(|error| raised(&error))
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new(rank: usize, size: usize, all_gather_of: Py<PyAny>) -> Self {
        let connect = Arc::new(Connect { all_gather_of, ended: Ended::default() });
        let (outboxes, threads) = (Mutex::default(), Mutex::default());
        let inbox = Arc::new(Inbox::new(size));
        Self { rank, size, connect, outboxes, inbox, threads, owner: Owner::this_process() }
    }

    /// Sends the bytes at an address, which the program leaves alone until `done(None, error or None)` is called, on another thread.
    fn send(&self, bytes: (usize, usize, String), to: usize, tag: i64, done: Py<PyAny>) -> PyResult<()> {
        self.check(to, "receiver")?;
        let place = Place::new(bytes, tag, done);
        let mut outboxes = self.outboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let outbox = outboxes.entry(to).or_insert_with(|| {
            let (sender, messages) = channel();
            let (connect, pair) = (Arc::clone(&self.connect), (self.rank, to));
            self.start(format!("to {to}"), move || serve_outbox(&connect, pair, &messages));
            sender
        });
        outbox.send(place).map_err(|_| argument(SHUT_DOWN))
    }

    /// Receives bytes to an address, from a rank or from any; `done(source, error or None)` is called on another thread.
    #[pyo3(signature = (bytes, source, tag, done))]
    fn receive(
        &self,
        py: Python<'_>,
        bytes: (usize, usize, String),
        source: Option<usize>,
        tag: i64,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        if let Some(source) = source {
            self.check(source, "sender")?;
        }
        let place = Place::new(bytes, tag, done);
        py.detach(|| self.inbox.post(source, place));
        for from in
            (0..self.size).filter(|&from| from != self.rank && source.is_none_or(|source| source == from))
        {
            if self.inbox.begin(from) {
                let (connect, inbox, pair) =
                    (Arc::clone(&self.connect), Arc::clone(&self.inbox), (from, self.rank));
                self.start(format!("from {from}"), move || {
                    endable(&connect.ended, || inbox.serve(from, || connect.join(1, pair)));
                });
            }
        }
        Ok(())
    }

    /// Ends the messages in flight, with an error.
    fn close(&self, py: Python<'_>) {
        if self.owner.check().is_err() {
            return;
        }
        let _ = self.connect.ended.set(SHUT_DOWN.to_owned());
        py.detach(|| {
            self.outboxes.lock().unwrap_or_else(PoisonError::into_inner).clear();
            self.inbox.close(SHUT_DOWN);
            for thread in self.threads().drain(..) {
                let _ = thread.join();
            }
        });
    }
}

impl Mailbox {
    fn check(&self, other: usize, what: &str) -> PyResult<()> {
        self.owner.check().map_err(argument)?;
        if other >= self.size || other == self.rank {
            return Err(argument(format!("the {what} is {other}, to rank {} of {}", self.rank, self.size)));
        }
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, name: String, serve: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name(name).spawn(serve);
        self.threads().push(thread.expect("the system starts a thread"));
    }
}
