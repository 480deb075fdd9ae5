//! The link through MPI.
//!
//! A message is a header, followed by its payload if that is short ([`SHORT`]). A longer payload follows in segments, which are sent and
//! received in place. Counts stay far below the 2^31 limit of MPI.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::thread::ThreadId;

use unisono_collectives::Rank;

use super::ending::end_job;
use super::sys::{Comm, Request, check_thread};
use crate::kernels;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::half::Polled;
use crate::transport::link::{FAR_SEGMENT, Link, PIECE};
use crate::transport::{Failure, Header, Outgoing};

const HEADER: usize = size_of::<Header>();
/// The size of the longest first message. MPI libraries send this much at once to another node, and a second message costs a quarter of the
/// total (measured for 4 KiB: 99 and 73 µs).
const FIRST: usize = 8 << 10;
/// The largest payload sent with its header.
const SHORT: usize = FIRST - HEADER;
/// The number of segments in flight in each direction. It keeps a network busy while the rank, or another thread on its core, does other
/// work.
const WINDOW: usize = 32;

// Tags of first messages; segments have the next one. Messages of one pair of ranks arrive in the order in which they are sent.
pub(super) const OF_COLLECTIVES: c_int = 1;
pub(super) const OF_MESSAGES: c_int = 4;

#[derive(Debug)]
pub(super) struct ByMpi {
    comm: Comm,
    tag: c_int,
    segment: usize,
    /// By rank of the world.
    peers: Vec<Peer>,
    only_thread: Option<ThreadId>,
}

/// The messages to and from another rank.
#[derive(Debug, Default)]
struct Peer {
    /// The header, and a short payload.
    sent: Scratch,
    sends: VecDeque<Request>,
    /// Whether the message being sent has a long payload, which MPI reads in place.
    lends: bool,
    received: Scratch,
    first: First,
    /// The payload size of the arriving message.
    size_bytes: usize,
    /// The number of bytes of a long payload that have been requested.
    requested: usize,
    /// The number of bytes of a long payload that have arrived.
    arrived: usize,
    segments: VecDeque<Request>,
}

/// The first MPI message of the next message from a rank.
#[derive(Debug, Default)]
enum First {
    #[default]
    Awaited,
    Arriving(Request),
    Arrived,
}

impl ByMpi {
    pub(super) fn new(
        comm: Comm,
        (tag, segment): (c_int, usize),
        ranks: usize,
        only_thread: Option<ThreadId>,
    ) -> Self {
        let peers = (0..ranks).map(|_| Peer::default()).collect();
        Self { comm, tag, segment: segment.min(FAR_SEGMENT), peers, only_thread }
    }

    /// Returns the segment of a payload of `size_bytes` bytes that starts at `start`. No segment is in two pieces.
    fn segment(&self, start: usize, size_bytes: usize) -> Range<usize> {
        start..size_bytes.min(start + self.segment).min((start / PIECE + 1) * PIECE)
    }
}

impl Link for ByMpi {
    fn send(
        &mut self,
        header: &Header,
        Outgoing { to, bytes }: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        check_thread(self.only_thread);
        let before = *given;
        if *given == 0 {
            let peer = &mut self.peers[to];
            let short = if bytes.len() <= SHORT { bytes } else { &[] };
            let first = peer.sent.take(HEADER + short.len());
            first[..HEADER].copy_from_slice(bytemuck::bytes_of(header));
            kernels::copy(&mut first[HEADER..], short);
            *given = first.len();
            peer.lends = short.len() < bytes.len();
            // SAFETY: the link owns the memory, and reuses it only for the next message to that rank, after this one is sent.
            let request = unsafe { self.comm.begin_send(first, to, self.tag) };
            peer.sends.push_back(request.map_err(Failure::Error)?);
        }
        while *given < HEADER + bytes.len() && self.peers[to].sends.len() < WINDOW {
            let segment = &bytes[self.segment(*given - HEADER, bytes.len())];
            *given += segment.len();
            // SAFETY: the caller keeps the bytes until the message is sent, that is, until all requests are done. After a failure, the job ends if
            // some are not (`holds_memory`).
            let request = unsafe { self.comm.begin_send(segment, to, self.tag + 1) };
            self.peers[to].sends.push_back(request.map_err(Failure::Error)?);
        }
        let sends = &mut self.peers[to].sends;
        let moved = take_done(sends)? || *given > before;
        Ok(Polled::of(moved, sends.is_empty() && *given == HEADER + bytes.len()))
    }

    fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        check_thread(self.only_thread);
        let peer = &mut self.peers[from];
        if let First::Awaited = peer.first {
            let place = || std::ptr::from_mut(peer.received.take(FIRST));
            // SAFETY: the link owns the memory, and no code reads or changes it before the request is done.
            let request = unsafe { self.comm.begin_arrived(from, self.tag, place) };
            let Some(request) = request.map_err(Failure::Error)? else { return Ok(None) };
            peer.first = First::Arriving(request);
        }
        if let First::Arriving(request) = &mut peer.first {
            if !request.is_done().map_err(Failure::Error)? {
                return Ok(None);
            }
            peer.first = First::Arrived;
        }
        let header: Header = *bytemuck::from_bytes(peer.received.take(HEADER));
        peer.size_bytes = header.size_bytes();
        Ok(Some(header))
    }

    fn receive(&mut self, from: Rank, place: &mut [u8], taken: &mut usize) -> Result<Polled, Failure> {
        check_thread(self.only_thread);
        let Peer { size_bytes, requested, arrived, .. } = self.peers[from];
        if size_bytes <= SHORT {
            let peer = &mut self.peers[from];
            kernels::copy(place, &peer.received.take(HEADER + size_bytes)[HEADER..]);
            (*taken, peer.first) = (size_bytes, First::Awaited);
            return Ok(Polled::Done);
        }
        let begin = arrived - *taken;
        let (mut requested, end) = (requested, begin + place.len());
        while requested < end && self.peers[from].segments.len() < WINDOW {
            let segment = self.segment(requested, size_bytes);
            let place = &mut place[segment.start - begin..segment.end - begin];
            // SAFETY: the caller keeps the place, and does not access it, until the message has arrived, that is, until all requests are
            // done. After a failure, the job ends if some are not (`holds_memory`).
            let request = unsafe { self.comm.begin_receive(place, from, self.tag + 1) };
            self.peers[from].segments.push_back(request.map_err(Failure::Error)?);
            requested = segment.end;
        }
        let next = self.segment(arrived, size_bytes).end;
        let peer = &mut self.peers[from];
        let moved = take_done(&mut peer.segments)?;
        (peer.requested, peer.arrived) = (requested, if moved { next } else { arrived });
        *taken = peer.arrived - begin;
        if peer.arrived == size_bytes {
            (peer.first, peer.requested, peer.arrived) = (First::Awaited, 0, 0);
        }
        Ok(Polled::of(moved, *taken == place.len()))
    }

    fn holds_memory(&self, other: Rank) -> bool {
        let Peer { lends, sends, segments, .. } = &self.peers[other];
        *lends && !sends.is_empty() || !segments.is_empty()
    }

    fn end_job(&self, status: &StatusBoard) -> ! {
        end_job(status)
    }
}

fn take_done(requests: &mut VecDeque<Request>) -> Result<bool, Failure> {
    let Some(oldest) = requests.front_mut() else { return Ok(false) };
    let done = oldest.is_done().map_err(Failure::Error)?;
    if done {
        requests.pop_front();
    }
    Ok(done)
}

impl Drop for ByMpi {
    fn drop(&mut self) {
        let is_lent = |peer: &Peer| !peer.sends.is_empty() || matches!(peer.first, First::Arriving(_));
        if self.peers.iter().any(is_lent) {
            // MPI still uses the memory.
            std::mem::forget(std::mem::take(&mut self.peers));
        }
    }
}
