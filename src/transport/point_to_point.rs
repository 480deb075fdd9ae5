//! Point-to-point messages of the program: any number of sends and receives in flight, matched by source and tag.
//!
//! Messages use separate links, so that neither they nor collectives wait for each other. Each link keeps order, with at most one message
//! to each rank and one from each rank in transit. A receive gets the earliest message of its source with its tag. While a receive waits,
//! other messages of its source that arrive are *held* in memory. A source for which no receive waits is not read, so its sender waits,
//! unless the message is eager.

use std::collections::VecDeque;
use std::{fmt, io};

use unisono_collectives::Rank;

use super::half::Polled;
use super::{Deadlines, Failure, Header, Outgoing};
use crate::error::{Error, Result};
use crate::kernels;
use crate::status::StatusBoard;

mod driver;
mod ending;
mod flight;
mod links;
mod operation;

pub(crate) use driver::Messages;
pub(crate) use flight::{Parts, Received, Sent};
use links::Links;
pub(crate) use operation::Options;
use operation::{OnEnd, Operation, Receive, SEND, Send};

/// The largest number of bytes of held messages.
const MAX_HELD: usize = 1 << 30;

/// The messages of a rank that are in flight.
pub(super) struct PointToPoint {
    status: StatusBoard,
    links: Links,
    /// By rank.
    peers: Vec<Peer>,
    /// Unmatched receives, in the order of their calls.
    awaited: Vec<Receive>,
    held_bytes: usize,
    /// The number of operations that have begun.
    begun: u64,
    /// The number of operations that have not ended.
    pending: usize,
    /// The number of messages received by calls that accept any source, and the source of the last one.
    from_any: (u64, Rank),
    /// The results of blocking calls, by ticket.
    ended: Vec<(u64, Result<Rank>)>,
    /// The non-blocking calls that have ended, and their results. They are notified without the lock that protects the messages.
    finished: Vec<(OnEnd, Result<Rank>)>,
    /// The rank that failed first, and its cause.
    failure: Option<(Rank, String)>,
}

impl fmt::Debug for PointToPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PointToPoint").field("pending", &self.pending).finish_non_exhaustive()
    }
}

// SAFETY: the pointers of operations are to memory that their callers keep until the operation has ended, on any thread.
unsafe impl std::marker::Send for PointToPoint {}

impl Drop for PointToPoint {
    /// A message that no receive has matched may still be arriving.
    fn drop(&mut self) {
        for from in 0..self.peers.len() {
            if self.peers[from].arriving.is_some() && self.links.withdraw_from(from) {
                // The link may still write to its memory.
                std::mem::forget(self.peers[from].arriving.take());
            }
        }
    }
}

/// The messages to and from another rank.
#[derive(Default)]
struct Peer {
    /// Oldest first. The first one is in transit.
    sends: VecDeque<Send>,
    arriving: Option<Arriving>,
    /// Messages that match no receive yet, oldest first.
    held: VecDeque<(Header, Vec<u8>)>,
    /// The number of sends to this rank.
    sent: u64,
    /// The number of receives from this rank.
    received: u64,
}

/// A message in transit to this rank.
struct Arriving {
    header: Header,
    target: Arrival,
    /// The number of bytes that have arrived.
    taken: usize,
}

enum Arrival {
    Receive(Receive),
    Held(Vec<u8>),
}

impl PointToPoint {
    fn new(links: Links, status: StatusBoard) -> Self {
        let peers = (0..status.ranks()).map(|_| Peer::default()).collect();
        let from_any = (0, status.rank());
        let (awaited, ended, finished, failure) = Default::default();
        let (held_bytes, begun, pending) = (0, 0, 0);
        Self { status, links, peers, awaited, held_bytes, begun, pending, from_any, ended, finished, failure }
    }

    /// Returns whether no operation is in flight.
    fn is_idle(&self) -> bool {
        self.pending == 0
    }

    /// Returns the result of a blocking call, if it has ended.
    fn take_ended(&mut self, ticket: u64) -> Option<Result<Rank>> {
        let place = self.ended.iter().position(|(ended, _)| *ended == ticket)?;
        Some(self.ended.swap_remove(place).1)
    }

    /// Starts to send a message, and returns the number of the operation.
    ///
    /// # Safety
    /// The bytes must stay valid and unchanged until the operation has ended: until [`PointToPoint::take_ended`] returns its result,
    /// or `on_end` is called.
    unsafe fn send(&mut self, options: &Options, to: Rank, bytes: *const [u8], on_end: Option<OnEnd>) -> u64 {
        let number = self.peers[to].sent;
        self.peers[to].sent += 1;
        let header = Header::of_message(options.dtype, bytes.len(), (options.tag, options.label), number);
        let call = self.begin(options, header, (SEND, number), on_end);
        let ticket = call.ticket;
        if let Some(aborted) = self.aborted() {
            self.end(call, Err(aborted));
        } else {
            self.links.delay();
            if self.links.loses(to) {
                self.end(call, Ok(to));
            } else {
                self.peers[to].sends.push_back(Send { call, bytes, given: 0 });
            }
        }
        ticket
    }

    /// Starts to receive the earliest message with this tag from a rank, or from any, and returns the number of the operation.
    ///
    /// # Safety
    /// The place must stay valid, and must not be accessed, until the operation has ended, as in [`PointToPoint::send`].
    unsafe fn receive(
        &mut self,
        options: &Options,
        from: Option<Rank>,
        place: *mut [u8],
        on_end: Option<OnEnd>,
    ) -> u64 {
        let named = match from {
            Some(from) => ("receive", self.number_from(from)),
            None => ("receive-any", self.from_any.0),
        };
        let header = Header::of_message(options.dtype, place.len(), (options.tag, options.label), 0);
        let call = self.begin(options, header, named, on_end);
        let ticket = call.ticket;
        let receive = Receive { call, from, place };
        if let Some(aborted) = self.aborted() {
            self.end(receive.call, Err(aborted));
            return ticket;
        }
        self.links.delay();
        let has_arrived = |from: Rank| {
            let place = self.peers[from].held.iter().position(|(header, _)| receive.is_for(from, header));
            place.map(|place| (from, place))
        };
        match self.sources().find_map(has_arrived) {
            Some((from, place)) => {
                let (header, bytes) = self.peers[from].held.remove(place).expect("it has arrived");
                self.take_held(receive, from, &header, &bytes);
            }
            None => self.awaited.push(receive),
        }
        ticket
    }

    fn begin(
        &mut self,
        options: &Options,
        header: Header,
        (operation, number): (&'static str, u64),
        on_end: Option<OnEnd>,
    ) -> Operation {
        let is_first = self.begun == self.pending as u64;
        self.begun += 1;
        self.pending += 1;
        if on_end.is_some() {
            self.status.message_begins();
        }
        let timeout = if is_first { options.first_timeout } else { options.deadlines.timeout };
        Operation {
            ticket: self.begun,
            header,
            is_send: operation == SEND,
            operation: options.operation.unwrap_or(operation),
            number,
            deadlines: Deadlines { timeout, ..options.deadlines },
            silence: None,
            gone: None,
            on_end,
        }
    }

    fn number_from(&mut self, from: Rank) -> u64 {
        self.peers[from].received += 1;
        self.peers[from].received - 1
    }

    /// Returns the ranks that may send to this one, from the one after the latest source of a call that accepts any.
    fn sources(&self) -> impl Iterator<Item = Rank> + use<> {
        let (own, ranks, last) = (self.status.rank(), self.peers.len(), self.from_any.1);
        (1..=ranks).map(move |places| (last + places) % ranks).filter(move |&rank| rank != own)
    }

    /// Makes progress without blocking. Returns whether there was any.
    fn progress(&mut self) -> bool {
        if self.pending == 0 {
            return false;
        }
        let mut moved = false;
        for to in 0..self.peers.len() {
            while let Some(step) = self.progress_send(to) {
                moved |= step != Polled::Idle;
                if step != Polled::Done {
                    break;
                }
            }
        }
        for from in self.sources() {
            while let Some(step) = self.progress_receive(from) {
                moved |= step != Polled::Idle;
                if step == Polled::Idle {
                    break;
                }
            }
        }
        moved
    }

    /// Continues the oldest send to a rank, if there is one.
    fn progress_send(&mut self, to: Rank) -> Option<Polled> {
        let Send { call, bytes, given } = self.peers[to].sends.front_mut()?;
        // SAFETY: the caller of `send` keeps the bytes until the operation has ended.
        let outgoing = Outgoing { to, bytes: unsafe { &**bytes } };
        let step = self.links.send(&call.header, outgoing, given);
        match step {
            Ok(Polled::Moved) => call.renew(),
            Ok(Polled::Idle) => {}
            Ok(Polled::Done) => {
                let send = self.peers[to].sends.pop_front().expect("it is in transit");
                self.end(send.call, Ok(to));
            }
            Err(failure) => {
                let send = self.peers[to].sends.pop_front().expect("it is in transit");
                self.fail(send.call, failure);
                return None;
            }
        }
        step.ok()
    }

    /// Continues to receive the next message from a rank, if a receive waits for one of its messages; `None` if not, or after a failure.
    fn progress_receive(&mut self, from: Rank) -> Option<Polled> {
        self.receive_part(from).unwrap_or_else(|failure| {
            self.fail_receive(from, failure);
            None
        })
    }

    fn receive_part(&mut self, from: Rank) -> Result<Option<Polled>, Failure> {
        if self.peers[from].arriving.is_none() {
            if !self.awaited.iter().any(|receive| receive.is_from(from)) {
                return Ok(None);
            }
            let Some(header) = self.links.ahead(from)? else { return Ok(Some(Polled::Idle)) };
            let target = match self.awaited.iter().position(|receive| receive.is_for(from, &header)) {
                Some(place) => {
                    let mut receive = self.awaited.remove(place);
                    self.match_to(&mut receive, from);
                    if let Err(failure) = receive.call.header.check_matched(&header, from, &self.status) {
                        self.fail(receive.call, failure);
                        return Ok(None);
                    }
                    Arrival::Receive(receive)
                }
                None => Arrival::Held(self.hold(header.size_bytes()).map_err(Failure::Error)?),
            };
            self.peers[from].arriving = Some(Arriving { header, target, taken: 0 });
        }
        let Some(Arriving { header, target, taken }) = &mut self.peers[from].arriving else {
            return Ok(None);
        };
        let place = match target {
            // SAFETY: the caller of `receive` keeps the place until the operation has ended, and no other code accesses it.
            Arrival::Receive(receive) => unsafe { &mut *receive.place },
            Arrival::Held(bytes) => bytes,
        };
        let step = self.links.receive(header, from, place, taken)?;
        match step {
            Polled::Idle => {}
            Polled::Moved => {
                if let Arrival::Receive(receive) = target {
                    receive.call.renew();
                }
                self.renew_receives_from(from);
            }
            Polled::Done => self.arrived(from),
        }
        Ok(Some(step))
    }

    /// Assigns the message of a rank to a receive. Errors of the receive name the rank from now on.
    fn match_to(&mut self, receive: &mut Receive, from: Rank) {
        if receive.from.is_none() {
            self.from_any = (self.from_any.0 + 1, from);
            receive.from = Some(from);
            (receive.call.operation, receive.call.number) = ("receive", self.number_from(from));
        }
    }

    /// Ends the receive of the message that was arriving from a rank, or holds the message.
    fn arrived(&mut self, from: Rank) {
        let Some(Arriving { header, target, .. }) = self.peers[from].arriving.take() else { return };
        self.renew_receives_from(from);
        let bytes = match target {
            Arrival::Receive(receive) => return self.end(receive.call, Ok(from)),
            Arrival::Held(bytes) => bytes,
        };
        // A matching receive may have begun in the meantime.
        match self.awaited.iter().position(|receive| receive.is_for(from, &header)) {
            Some(place) => {
                let receive = self.awaited.remove(place);
                self.take_held(receive, from, &header, &bytes);
            }
            None => self.peers[from].held.push_back((header, bytes)),
        }
    }

    /// Completes a receive with a held message.
    fn take_held(&mut self, mut receive: Receive, from: Rank, header: &Header, bytes: &[u8]) {
        self.held_bytes -= bytes.len();
        self.match_to(&mut receive, from);
        match receive.call.header.check_matched(header, from, &self.status) {
            Ok(()) => {
                // SAFETY: as in `receive_part`.
                kernels::copy(unsafe { &mut *receive.place }, bytes);
                self.end(receive.call, Ok(from));
            }
            Err(failure) => self.fail(receive.call, failure),
        }
    }

    /// Returns memory for a message that no receive matches.
    fn hold(&mut self, size_bytes: usize) -> Result<Vec<u8>> {
        if size_bytes > MAX_HELD - self.held_bytes {
            let cause = io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "messages with tags that no receive has asked for may take {MAX_HELD} bytes; receive messages in the order \
                     in which they are sent, or start their receives earlier"
                ),
            );
            return Err(Error::Memory { size_bytes: self.held_bytes.saturating_add(size_bytes), cause });
        }
        let mut bytes = Vec::new();
        let refused = |_| Error::Memory { size_bytes, cause: io::ErrorKind::OutOfMemory.into() };
        bytes.try_reserve_exact(size_bytes).map_err(refused)?;
        bytes.resize(size_bytes, 0);
        self.held_bytes += size_bytes;
        Ok(bytes)
    }
}
