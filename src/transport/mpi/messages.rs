//! Point-to-point messages of the program through MPI, with tags of their own: neither they nor collectives wait for each other.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::thread::ThreadId;

use unisono_collectives::Rank;

use super::Mpi;
use super::exchange::{Link, SHORT};
use super::flight::take_done;
use super::sys::{Request, User, check_thread};
use super::wire::{FIRST, MESSAGE_SEGMENT_TAG, MESSAGE_TAG};
use crate::kernels;
use crate::memory::Scratch;
use crate::transport::half::Polled;
use crate::transport::{Failure, Header, Outgoing, tcp};

const HEADER: usize = size_of::<Header>();

/// This rank's end of the messages.
#[derive(Debug)]
pub(in crate::transport) struct Line {
    /// By rank of the world.
    peers: Vec<Peer>,
    only_thread: Option<ThreadId>,
    /// Messages may be sent on other threads than collectives.
    _user: User,
}

/// The messages to and from another rank: one each is under way.
#[derive(Debug)]
struct Peer {
    link: Link,
    /// The header, and a short payload.
    sent: Scratch,
    sends: VecDeque<Request>,
    received: Scratch,
    first: First,
    /// How much of a long payload has been posted.
    asked: usize,
    segments: VecDeque<Request>,
}

/// The first MPI message of the next message from a rank.
#[derive(Debug)]
enum First {
    Awaited,
    Arriving(Request),
    Here,
}

impl Mpi {
    /// The connections for point-to-point messages, if MPI has nothing better.
    pub(in crate::transport) fn take_messages(&mut self) -> Option<tcp::Line> {
        self.tcp.as_mut()?.take_messages()
    }

    /// The point-to-point messages through MPI.
    pub(in crate::transport) fn for_messages(&self) -> Line {
        let peer = |rank| Peer {
            link: self.messages.link(self.comm, rank),
            sent: Scratch::default(),
            sends: VecDeque::new(),
            received: Scratch::default(),
            first: First::Awaited,
            asked: 0,
            segments: VecDeque::new(),
        };
        let peers = (0..self.topology.ranks()).map(peer).collect();
        Line { peers, only_thread: self.only_thread, _user: User::new() }
    }

    /// How often this rank polls before it yields.
    pub(in crate::transport) fn spins(&self) -> u32 {
        self.spins
    }
}

impl Line {
    fn peer(&mut self, rank: Rank) -> &mut Peer {
        check_thread(self.only_thread);
        &mut self.peers[rank]
    }

    /// Continues to send a message, of which `given` bytes were posted before, header included.
    pub(in crate::transport) fn send(
        &mut self,
        header: &Header,
        Outgoing { to, bytes }: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        let peer = self.peer(to);
        let before = *given;
        if *given == 0 {
            let short = if bytes.len() <= SHORT { bytes } else { &[] };
            let first = peer.sent.take(HEADER + short.len());
            first[..HEADER].copy_from_slice(bytemuck::bytes_of(header));
            kernels::copy(&mut first[HEADER..], short);
            *given = first.len();
            let (first, size) = (first.as_ptr(), first.len() as c_int);
            // SAFETY: the memory is this end's, and is used again only for the next message to that rank, after this one is sent.
            let request = unsafe { peer.link.comm.begin_send(first, size, to, MESSAGE_TAG) };
            peer.sends.push_back(request.map_err(Failure::Error)?);
        }
        while *given < HEADER + bytes.len() && peer.sends.len() < peer.link.window {
            let segment = &bytes[peer.link.segment(*given - HEADER, bytes.len())];
            *given += segment.len();
            let (start, size) = (segment.as_ptr(), segment.len() as c_int);
            // SAFETY: the caller keeps the bytes until the message is sent, which it is when all requests are done; after a failure the
            // job ends if some are not (`is_stranded`).
            let request = unsafe { peer.link.comm.begin_send(start, size, to, MESSAGE_SEGMENT_TAG) };
            peer.sends.push_back(request.map_err(Failure::Error)?);
        }
        let moved = take_done(&mut peer.sends)? || *given > before;
        Ok(Polled::of(moved, peer.sends.is_empty() && *given == HEADER + bytes.len()))
    }

    /// The header of the next message from a rank, if it has arrived.
    pub(in crate::transport) fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        let peer = self.peer(from);
        if let First::Awaited = peer.first {
            let comm = peer.link.comm;
            let Some(probed) = comm.probe(Some(from), MESSAGE_TAG).map_err(Failure::Error)? else {
                return Ok(None);
            };
            let place = peer.received.take(FIRST).as_mut_ptr();
            // SAFETY: the memory is this end's, and nobody reads or changes it before the request is done.
            let request = unsafe { probed.begin_receive(place, FIRST as c_int) };
            peer.first = First::Arriving(request.map_err(Failure::Error)?);
        }
        if let First::Arriving(request) = &mut peer.first {
            if !request.is_done().map_err(Failure::Error)? {
                return Ok(None);
            }
            peer.first = First::Here;
        }
        Ok(Some(*bytemuck::from_bytes(peer.received.take(HEADER))))
    }

    /// Continues to receive the payload of the next message from a rank, whose header has [arrived](Line::ahead), into a place of its
    /// size, of which `taken` bytes are filled.
    pub(in crate::transport) fn receive(
        &mut self,
        from: Rank,
        place: &mut [u8],
        taken: &mut usize,
    ) -> Result<Polled, Failure> {
        let (peer, size_bytes) = (self.peer(from), place.len());
        let before = *taken;
        if size_bytes <= SHORT {
            kernels::copy(place, &peer.received.take(HEADER + size_bytes)[HEADER..]);
            *taken = size_bytes;
        } else {
            while peer.asked < size_bytes && peer.segments.len() < peer.link.window {
                let segment = &mut place[peer.link.segment(peer.asked, size_bytes)];
                peer.asked += segment.len();
                let (start, size) = (segment.as_mut_ptr(), segment.len() as c_int);
                // SAFETY: the caller keeps the place, and does not access it, until the message has arrived, which it has when all requests
                // are done; after a failure the job ends if some are not (`is_stranded`).
                let request = unsafe { peer.link.comm.begin_receive(start, size, from, MESSAGE_SEGMENT_TAG) };
                peer.segments.push_back(request.map_err(Failure::Error)?);
            }
            if take_done(&mut peer.segments)? {
                *taken = peer.link.segment(*taken, size_bytes).end;
            }
        }
        let done = *taken == size_bytes;
        if done {
            (peer.first, peer.asked) = (First::Awaited, 0);
        }
        Ok(Polled::of(*taken > before, done))
    }

    /// Whether MPI holds memory of the program.
    pub(in crate::transport) fn is_stranded(&self) -> bool {
        self.peers.iter().any(|peer| !peer.sends.is_empty() || !peer.segments.is_empty())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let is_lent = |peer: &Peer| !peer.sends.is_empty() || matches!(peer.first, First::Arriving(_));
        if self.peers.iter().any(is_lent) {
            // MPI still uses the memory.
            std::mem::forget(std::mem::take(&mut self.peers));
        }
    }
}
