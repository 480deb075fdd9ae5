//! The link over a UCX worker.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::time::Duration;

use unisono_collectives::Rank;

use super::inbox::{Envelope, Lost, Payload};
use super::library::Status;
use super::worker::{Request, Worker};
use crate::kernels;
use crate::transport::half::Polled;
use crate::transport::link::{Link, PIECE};
use crate::transport::{Failure, Header, Outgoing};

const HEADER: usize = size_of::<Header>();
/// The number of pieces of a message in transit at a time, in each direction.
const WINDOW: usize = 4;

/// A rank's messages. Their payloads are sent and received in place, in pieces.
#[derive(Debug)]
pub(super) struct Line {
    worker: Worker,
    /// By rank of the world.
    peers: Vec<Peer>,
}

/// The messages to and from another rank, at most one in transit in each direction.
#[derive(Debug, Default)]
struct Peer {
    sends: Flight,
    /// The number of the next piece to that rank.
    number: u32,
    /// The headers of the pieces that are being sent, by their number. UCX reads them until they are sent.
    envelopes: Box<[UnsafeCell<Envelope>; WINDOW]>,
    /// The arriving message: its header, and its first piece until that is received.
    arriving: Option<(Header, Option<Payload>)>,
    /// The number of bytes of the message in earlier places.
    before: usize,
    /// The number of bytes of the current place that have been posted.
    posted: usize,
    receives: Flight,
    /// Whether a message cannot be completed.
    is_broken: bool,
}

/// Pieces in transit, oldest first, with their sizes. A piece without a request is done.
type Flight = VecDeque<(Option<Request>, usize)>;

/// Removes the pieces that are done, up to the oldest that is not. Returns whether there were any, and the number of their bytes.
fn take_done(flight: &mut Flight, worker: &Worker) -> Result<(bool, usize), Status> {
    let (mut moved, mut size_bytes) = (false, 0);
    while let Some((request, piece)) = flight.front() {
        let done = request.as_ref().map_or(Ok(true), |request| worker.is_done(request));
        if done == Ok(false) {
            break;
        }
        (moved, size_bytes) = (true, size_bytes + piece);
        flight.pop_front();
        done?;
    }
    Ok((moved, size_bytes))
}

impl Peer {
    fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// Begins to send pieces, and removes those that are sent. Returns whether there were any.
    fn send(
        &mut self,
        worker: &Worker,
        (header, to, bytes): (&Header, Rank, &[u8]),
        given: &mut usize,
    ) -> Result<bool, Status> {
        let before = *given;
        // UCX may accept pieces for a rank that has left, and report that they are sent.
        let is_lost = worker.inbox.lost(to).is_some();
        let from = worker.inbox.own as u32;
        while *given < HEADER + bytes.len() && self.sends.len() < WINDOW && !is_lost {
            let start = given.saturating_sub(HEADER);
            let piece = &bytes[start..bytes.len().min(start + PIECE)];
            let envelope = self.envelopes[self.number as usize % WINDOW].get();
            // SAFETY: the piece that used this envelope before is sent, since at most `WINDOW` are in transit.
            unsafe { envelope.write(Envelope { header: *header, from, number: self.number }) };
            // SAFETY: the envelope is written again after `WINDOW` more pieces. The link's user keeps the bytes until the message is done,
            // that is, until all its requests are done.
            let request = unsafe { worker.send(to, envelope, piece) }?;
            self.sends.push_back((request, piece.len()));
            self.number = self.number.wrapping_add(1);
            *given = HEADER + start + piece.len();
        }
        let (moved, _) = take_done(&mut self.sends, worker)?;
        Ok(moved || *given > before)
    }

    /// Begins to receive pieces into a place, and removes those that are received. Returns whether there were any.
    fn receive(
        &mut self,
        worker: &Worker,
        from: Rank,
        place: &mut [u8],
        taken: &mut usize,
    ) -> Result<bool, Lost> {
        while self.receives.len() < WINDOW {
            let first = self.arriving.as_mut().and_then(|(_, first)| first.take());
            let next = || worker.inbox.take(from).map(|(_, payload)| payload);
            let is_needed = self.posted < place.len();
            let Some(payload) = first.or_else(|| if is_needed { next() } else { None }) else { break };
            let end = place.len().min(self.posted + PIECE);
            let target = &mut place[self.posted..end];
            let size_bytes = target.len();
            if payload.size_bytes() != size_bytes {
                worker.release(payload);
                return Err(Lost::Malformed);
            }
            let request = match payload {
                Payload::Copied(bytes) => {
                    kernels::copy(target, &bytes);
                    None
                }
                Payload::Held(bytes, _) => {
                    let start = bytes.0.as_ptr().cast();
                    // SAFETY: UCX keeps this many bytes at this address until they are released.
                    kernels::copy(target, unsafe { std::slice::from_raw_parts(start, size_bytes) });
                    worker.release(Payload::Held(bytes, size_bytes));
                    None
                }
                Payload::Offered(offer, _) => {
                    // SAFETY: the offer arrived at this worker. The link's user keeps the place, and does not access it, until it is filled,
                    // that is, until all its requests are done.
                    unsafe { worker.receive(offer, target) }.map_err(Lost::Failed)?
                }
            };
            self.receives.push_back((request, size_bytes));
            self.posted = end;
        }
        let (moved, size_bytes) = take_done(&mut self.receives, worker).map_err(Lost::Failed)?;
        *taken += size_bytes;
        Ok(moved)
    }

    /// Ends a place that is filled, and the message if this was its last place. Returns whether the place is filled.
    fn end_place(&mut self, size_bytes: usize) -> bool {
        let Some((header, None)) = &self.arriving else { return false };
        if self.posted < size_bytes || !self.receives.is_empty() {
            return false;
        }
        (self.before, self.posted) = (self.before + size_bytes, 0);
        if self.before == header.size_bytes() {
            (self.arriving, self.before) = (None, 0);
        }
        true
    }
}

impl Line {
    pub(super) fn new(worker: Worker, ranks: usize) -> Self {
        Self { worker, peers: (0..ranks).map(|_| Peer::default()).collect() }
    }

    /// Makes an attempt, and another one after progress of UCX. Returns whether there was any for the message.
    fn attempt(
        &mut self,
        other: Rank,
        mut attempt: impl FnMut(&mut Peer, &Worker) -> Result<bool, Lost>,
    ) -> bool {
        let Self { worker, peers } = self;
        let peer = &mut peers[other];
        for _ in 0..2 {
            if peer.is_broken {
                break;
            }
            match attempt(peer, worker) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(lost) => {
                    worker.inbox.lose(other, lost);
                    peer.is_broken = true;
                }
            }
            if !worker.progress() {
                break;
            }
        }
        false
    }
}

impl Link for Line {
    fn send(
        &mut self,
        header: &Header,
        Outgoing { to, bytes }: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        let message = (header, to, bytes);
        let moved = self.attempt(to, |peer, worker| peer.send(worker, message, given).map_err(Lost::Failed));
        let peer = &self.peers[to];
        let is_done = !peer.is_broken && *given == HEADER + bytes.len() && peer.sends.is_empty();
        Ok(Polled::of(moved, is_done))
    }

    fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        let Self { worker, peers } = self;
        let peer = &mut peers[from];
        if peer.arriving.is_none() {
            let piece = worker.inbox.take(from).or_else(|| {
                worker.progress();
                worker.inbox.take(from)
            });
            peer.arriving = piece.map(|(envelope, payload)| (envelope.header, Some(payload)));
        }
        Ok(peer.arriving.as_ref().map(|(header, _)| *header))
    }

    fn receive(&mut self, from: Rank, place: &mut [u8], taken: &mut usize) -> Result<Polled, Failure> {
        let moved = self.attempt(from, |peer, worker| peer.receive(worker, from, place, taken));
        let peer = &mut self.peers[from];
        let is_done = !peer.is_broken && peer.end_place(place.len());
        Ok(Polled::of(moved, is_done))
    }

    fn wakes_up(&self) -> bool {
        true
    }

    fn nap(&self, most: Duration) {
        self.worker.wait(most);
    }

    fn lost(&self, other: Rank) -> Option<String> {
        self.worker.inbox.lost(other).map(|lost| lost.to_string())
    }

    /// Closes the connection, which ends all its requests.
    fn withdraw(&mut self, other: Rank) {
        let Self { worker, peers } = self;
        let Peer { sends, receives, is_broken, .. } = &mut peers[other];
        *is_broken = true;
        let requests = sends.drain(..).chain(receives.drain(..)).filter_map(|(request, _)| request);
        worker.end(std::iter::once(other), requests.collect());
    }

    fn holds_memory(&self, other: Rank) -> bool {
        !self.peers[other].is_idle() || self.worker.is_stuck()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.worker.is_of_parent() {
            return;
        }
        for other in 0..self.peers.len() {
            if let Some((_, Some(payload))) = self.peers[other].arriving.take() {
                self.worker.release(payload);
            }
            if !self.peers[other].is_idle() {
                self.withdraw(other);
            }
        }
        if self.worker.is_stuck() {
            // UCX may still read the envelopes.
            std::mem::forget(std::mem::take(&mut self.peers));
        }
    }
}
