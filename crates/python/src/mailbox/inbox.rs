//! The receiving side: receives that wait for a message, and messages that wait for a receive.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use unisono::{Communicator, copy};

use super::super::error::{argument, raised};
use super::{Header, Place};

/// The messages to one rank.
pub(super) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Receives without a message, in the order in which they were made.
    posted: VecDeque<Posted>,
    /// Messages without a receive, in the order in which they arrived.
    unexpected: VecDeque<Unexpected>,
    senders: Vec<Sender>,
    closed: bool,
}

struct Posted {
    source: Option<usize>,
    place: Place,
}

struct Unexpected {
    from: usize,
    header: Header,
    bytes: Vec<u8>,
}

/// What is known of a rank that may send.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Sender {
    /// No thread serves it.
    Unknown,
    Served,
    /// No message will come from it.
    Gone(String),
}

impl Posted {
    fn takes(&self, from: usize, header: &Header) -> bool {
        self.source.is_none_or(|source| source == from) && self.place.header.tag == header.tag
    }
}

impl Inbox {
    pub(super) fn new(ranks: usize) -> Self {
        let state = State {
            posted: VecDeque::new(),
            unexpected: VecDeque::new(),
            senders: vec![Sender::Unknown; ranks],
            closed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a thread is to be started for a sender: none serves it yet.
    pub(super) fn begin(&self, from: usize) -> bool {
        let sender = &mut self.lock().senders[from];
        let is_new = *sender == Sender::Unknown;
        if is_new {
            *sender = Sender::Served;
        }
        is_new
    }

    /// Makes a receive: of a message that is here, or of one that is to come.
    pub(super) fn post(&self, source: Option<usize>, place: Place) {
        let posted = Posted { source, place };
        let mut state = self.lock();
        if let Some(message) = state.take_unexpected(&posted) {
            drop(state);
            let taken = message.copied_to(&posted.place);
            return posted.place.end(message.from, taken);
        }
        if let Some(Sender::Gone(cause)) = source.map(|source| state.senders[source].clone()) {
            drop(state);
            return posted.place.end(source.unwrap_or_default(), Err(gone(&cause)));
        }
        state.posted.push_back(posted);
        self.changed.notify_all();
    }

    /// Receives the messages of one sender, as long as receives wait for it.
    pub(super) fn serve(&self, from: usize, join: impl FnOnce() -> unisono::Result<Communicator>) {
        let served = join().map_err(|error| raised(&error)).and_then(|mut comm| {
            while self.is_awaited(from) {
                self.receive(&mut comm, from)?;
            }
            Ok(())
        });
        if let Err(error) = served {
            self.lose(from, &error.to_string());
        }
    }

    /// Waits until a receive waits for this sender; false if the mailbox is closed instead.
    fn is_awaited(&self, from: usize) -> bool {
        let idle = |state: &mut State| {
            !state.closed
                && !state.posted.iter().any(|posted| posted.source.is_none_or(|source| source == from))
        };
        let state = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        !state.closed
    }

    /// Receives a message, for the first receive that takes it.
    fn receive(&self, comm: &mut Communicator, from: usize) -> PyResult<()> {
        let mut header = Header::default().encoded();
        comm.receive(&mut header, 0).map_err(lost)?;
        let header = Header::decoded(header);
        // Not in the scrutinee below, which would hold the lock while the program is told.
        let posted = self.lock().take_posted(from, &header);
        match posted {
            Some(posted) if posted.place.header == header => {
                // SAFETY: the program holds the memory until `end`.
                let received =
                    unsafe { posted.place.bytes() }.and_then(|mut bytes| receive_bytes(comm, &mut bytes));
                let failed = received.as_ref().err().map(|error| Python::attach(|py| error.clone_ref(py)));
                posted.place.end(from, received);
                failed.map_or(Ok(()), Err)
            }
            posted => {
                let mut bytes = vec![0; header.size_bytes];
                receive_bytes(comm, &mut bytes)?;
                self.deliver(Unexpected { from, header, bytes }, posted);
                Ok(())
            }
        }
    }

    /// Hands a message to its receive, which may have been made meanwhile, or keeps it for one to come.
    fn deliver(&self, message: Unexpected, posted: Option<Posted>) {
        let mut state = self.lock();
        match posted.or_else(|| state.take_posted(message.from, &message.header)) {
            Some(posted) => {
                drop(state);
                let from = message.from;
                let taken = message.copied_to(&posted.place);
                posted.place.end(from, taken);
            }
            None => state.unexpected.push_back(message),
        }
    }

    /// Ends the receives that no message will come for.
    fn lose(&self, from: usize, cause: &str) {
        let mut state = self.lock();
        state.senders[from] = Sender::Gone(cause.to_owned());
        let all_gone = !state.senders.contains(&Sender::Served);
        let is_lost = |posted: &Posted| posted.source.map_or(all_gone, |source| source == from);
        let (lost, posted) = state.posted.drain(..).partition(is_lost);
        state.posted = posted;
        drop(state);
        end_all(from, lost, cause);
    }

    /// Ends all receives.
    pub(super) fn close(&self, cause: &str) {
        let mut state = self.lock();
        state.closed = true;
        let posted = std::mem::take(&mut state.posted);
        self.changed.notify_all();
        drop(state);
        end_all(0, posted, cause);
    }
}

impl State {
    /// Removes the first receive that takes a message.
    fn take_posted(&mut self, from: usize, header: &Header) -> Option<Posted> {
        let found = self.posted.iter().position(|posted| posted.takes(from, header))?;
        self.posted.remove(found)
    }

    /// Removes the first message that a receive takes.
    fn take_unexpected(&mut self, posted: &Posted) -> Option<Unexpected> {
        let found = self.unexpected.iter().position(|message| posted.takes(message.from, &message.header))?;
        self.unexpected.remove(found)
    }
}

impl Unexpected {
    /// Copies the message to the memory of a receive, which must be for one of the same size and type.
    fn copied_to(&self, place: &Place) -> PyResult<()> {
        if self.header != place.header {
            let (from, theirs, ours) = (self.from, &self.header, &place.header);
            return Err(argument(format!("rank {from} sent {theirs}, and this rank receives {ours}")));
        }
        // SAFETY: the program holds the memory until `end`.
        copy(&mut unsafe { place.bytes() }?, &self.bytes);
        Ok(())
    }
}

fn receive_bytes(comm: &mut Communicator, bytes: &mut [u8]) -> PyResult<()> {
    if bytes.is_empty() { Ok(()) } else { comm.receive(bytes, 0).map_err(lost) }
}

fn lost(error: unisono::Error) -> PyErr {
    raised(&error)
}

fn gone(cause: &str) -> PyErr {
    PyRuntimeError::new_err(cause.to_owned())
}

fn end_all(from: usize, lost: VecDeque<Posted>, cause: &str) {
    for posted in lost {
        posted.place.end(posted.source.unwrap_or(from), Err(gone(cause)));
    }
}
