//! One exchange over MPI: post, poll, take in piece by piece.
//!
//! A message is a header, with its payload behind it if that is short ([`SHORT`]). A longer payload follows
//! in segments, sent from where it lies. Segments that are only put in place are received where they
//! belong; those that are reduced go through a few staging segments, so that one is on its way while
//! another is being reduced. No message is ever near the 2^31 bytes that MPI can count.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use unisono_collectives::Rank;

use super::ending::{end_job, last_words};
use super::flight::Flights;
use super::overheard::{Listening, Overheard};
use super::sys::{Comm, Request};
use super::wire::{FIRST, FIRST_TAG, SEGMENT_TAG};
use crate::error::Result;
use crate::memory::Scratch;
use crate::status::{FailureReport, StatusBoard, panicked};
use crate::transport::half::{Half, complete};
use crate::transport::{
    Deadlines, FAR_SEGMENT, Failure, Header, Headers, Incoming, Outgoing, Target, Waiting,
};

/// How much of a payload travels with its header.
const SHORT: usize = FIRST - size_of::<Header>();
/// How many segments are under way at a time, each way, inside of a node.
const WINDOW: usize = 3;
/// How many of those are under way: so many that the wire is busy while a rank, or the core that it shares, does something else.
const FAR_WINDOW: usize = 32;

/// The memory of a rank's messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) spins: u32,
    /// How much of a longer payload is sent at a time.
    segment: usize,
    sent: Scratch,
    received: Scratch,
    /// Whether each rank of the world is of another node.
    far: Vec<bool>,
    staging: Vec<Scratch>,
    pub(super) overheard: Overheard,
    /// Exchanges that go on meanwhile.
    pub(super) flights: Flights,
    /// Whether an exchange failed while MPI still had the caller's memory.
    stranded: bool,
    /// What says why this rank ends, if a panic ends it in the middle of an exchange.
    report: Option<Arc<dyn FailureReport>>,
}

impl Messages {
    pub(super) fn new(spins: u32, segment: usize, far: Vec<bool>) -> Self {
        Self { spins, segment, far, ..Self::default() }
    }

    /// How long messages travel between this rank and another.
    pub(super) fn link(&self, comm: Comm, other: Rank) -> Link {
        if self.far[other] {
            Link { comm, segment: self.segment.min(FAR_SEGMENT), window: FAR_WINDOW }
        } else {
            Link { comm, segment: self.segment, window: WINDOW }
        }
    }

    /// How often a rank looks before it gives way.
    pub(super) fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    pub(super) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        self.report = Some(report);
    }

    /// Whether MPI may still read or write memory that was lent to an exchange that failed.
    pub(super) fn are_stranded(&self) -> bool {
        self.stranded
    }

    /// Sends and receives one message each, at most. When it succeeds, MPI needs neither buffer any more.
    pub(super) fn exchange<'a>(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        headers: impl Into<Headers<'a>>,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let mut waiting = Waiting::new(self.spins, deadlines, status);
        self.halves(
            (comm, status),
            headers.into(),
            outgoing,
            incoming,
            |sending, receiving, mut listening| {
                begin(sending, receiving, &mut listening, &mut waiting)?;
                complete(sending, receiving, waiting, |other, waiting| listening.look_around(other, waiting))
            },
        )
    }

    /// Lets `exchange` carry out both halves, and sees to it that MPI keeps no memory that it should not.
    pub(super) fn halves(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        Headers { sent, awaited: header }: Headers<'_>,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        exchange: impl FnOnce(
            &mut Option<Sending<'_>>,
            &mut Option<Receiving<'_>>,
            Listening<'_>,
        ) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let guard = AbortOnPanic { report: self.report.as_deref(), status };
        let to = outgoing.as_ref().map(|outgoing| self.link(comm, outgoing.to));
        let from = incoming.as_ref().map(|incoming| self.link(comm, incoming.from));
        let mut sending =
            outgoing.zip(to).map(|(outgoing, link)| Sending::new(link, sent, outgoing, &mut self.sent));
        let mut receiving = incoming.zip(from).map(|(incoming, link)| {
            Receiving::new((link, status), header, incoming, &mut self.received, &mut self.staging)
        });
        let listening = Listening { comm, status, header, overheard: &mut self.overheard, gone_since: None };
        let done = exchange(&mut sending, &mut receiving, listening);
        self.stranded = done.is_err()
            && (sending.is_some_and(|sending| sending.lends_memory())
                || receiving.is_some_and(|receiving| receiving.lends_memory()));
        std::mem::forget(guard);
        done
    }
}

/// Begins both halves.
pub(super) fn begin(
    sending: &mut Option<Sending<'_>>,
    receiving: &mut Option<Receiving<'_>>,
    listening: &mut Listening<'_>,
    waiting: &mut Waiting<'_>,
) -> Result<(), Failure> {
    if let Some(send) = sending {
        send.begin().map_err(Failure::Error)?;
    }
    if let Some(receive) = receiving {
        let overheard = listening.recall(receive.from, waiting)?;
        receive.begin(overheard)?;
    }
    Ok(())
}

/// A panic must not free memory that MPI still reads or writes.
struct AbortOnPanic<'a> {
    report: Option<&'a dyn FailureReport>,
    status: &'a StatusBoard,
}

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        last_words(self.report, self.status, &panicked());
        end_job(self.status);
    }
}

/// What both halves share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    comm: Comm,
    pub(super) segment: usize,
    window: usize,
}

impl Link {
    /// The segment of a payload of `size_bytes` that begins at `start`.
    fn segment(self, start: usize, size_bytes: usize) -> Range<usize> {
        start..size_bytes.min(start + self.segment)
    }

    /// Which of the staging segments the segment that begins at `start` goes through.
    fn place(self, start: usize) -> usize {
        start / self.segment % self.window
    }
}

/// The sending half.
pub(super) struct Sending<'a> {
    link: Link,
    to: Rank,
    bytes: &'a [u8],
    first: &'a [u8],
    /// How much of a long payload MPI was given so far.
    given: usize,
    requests: VecDeque<Request>,
}

impl<'a> Sending<'a> {
    fn new(link: Link, header: &Header, outgoing: Outgoing<'a>, memory: &'a mut Scratch) -> Self {
        let Outgoing { to, bytes } = outgoing;
        let short = if bytes.len() <= SHORT { bytes } else { &[] };
        let first = memory.take(size_of::<Header>() + short.len());
        first[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header.of_size(bytes.len())));
        first[size_of::<Header>()..].copy_from_slice(short);
        let given = short.len();
        Self { link, to, bytes, first, given, requests: VecDeque::with_capacity(WINDOW) }
    }

    /// Gives MPI all that the window allows, before anything is received: MPI may copy a segment that
    /// arrives from inside any call, and the other rank would wait all the while for the beginning of ours.
    fn begin(&mut self) -> Result<()> {
        self.give(self.first, FIRST_TAG)?;
        self.give_segments()
    }

    fn give_segments(&mut self) -> Result<()> {
        while self.given < self.bytes.len() && self.requests.len() < self.link.window {
            let segment = self.link.segment(self.given, self.bytes.len());
            self.given = segment.end;
            self.give(&self.bytes[segment], SEGMENT_TAG)?;
        }
        Ok(())
    }

    fn give(&mut self, bytes: &[u8], tag: c_int) -> Result<()> {
        // SAFETY: the bytes are `first` or a part of `bytes`, both borrowed until after the exchange. It
        // succeeds only when all requests are done; if it fails with some under way, `lends_memory` tells,
        // and the job ends before the borrow does.
        let request =
            unsafe { self.link.comm.begin_send(bytes.as_ptr(), bytes.len() as c_int, self.to, tag) }?;
        self.requests.push_back(request);
        Ok(())
    }

    fn lends_memory(&self) -> bool {
        self.bytes.len() > SHORT && !self.requests.is_empty()
    }
}

impl Half for Sending<'_> {
    fn other(&self) -> Rank {
        self.to
    }

    fn is_done(&self) -> bool {
        self.requests.is_empty() && self.given == self.bytes.len()
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        self.give_segments().map_err(Failure::Error)?;
        let Some(oldest) = self.requests.front_mut() else { return Ok(false) };
        let done = oldest.is_done().map_err(Failure::Error)?;
        if done {
            self.requests.pop_front();
        }
        Ok(done)
    }
}

/// The receiving half.
pub(super) struct Receiving<'a> {
    link: Link,
    status: &'a StatusBoard,
    from: Rank,
    expected: Header,
    target: Target<'a>,
    size_bytes: usize,
    first: &'a mut [u8],
    staging: &'a mut Vec<Scratch>,
    header: Option<Request>,
    /// How much of the payload was asked of MPI, and how much has been taken in.
    asked: usize,
    taken: usize,
    segments: VecDeque<Request>,
}

impl<'a> Receiving<'a> {
    fn new(
        (link, status): (Link, &'a StatusBoard),
        header: &Header,
        incoming: Incoming<'a>,
        first: &'a mut Scratch,
        staging: &'a mut Vec<Scratch>,
    ) -> Self {
        let Incoming { from, target } = incoming;
        let size_bytes = target.size_bytes();
        Self {
            link,
            status,
            from,
            expected: header.of_size(size_bytes),
            target,
            size_bytes,
            first: first.take(FIRST),
            staging,
            header: None,
            asked: 0,
            taken: 0,
            segments: VecDeque::with_capacity(WINDOW),
        }
    }

    /// Asks for the first message, unless it was overheard before.
    fn begin(&mut self, overheard: Option<Scratch>) -> Result<(), Failure> {
        if let Some(mut message) = overheard {
            self.first.copy_from_slice(message.take(FIRST));
            return self.take_first();
        }
        // SAFETY: `first` belongs to this exchange, and to the communicator after it; it is freed after the
        // job, if the exchange fails before the request is done.
        let request = unsafe {
            self.link.comm.begin_receive(self.first.as_mut_ptr(), FIRST as c_int, self.from, FIRST_TAG)
        };
        self.header = Some(request.map_err(Failure::Error)?);
        Ok(())
    }

    /// Checks that the sender is in the same collective, and takes in a short payload.
    fn take_first(&mut self) -> Result<(), Failure> {
        let (header, payload) = self.first.split_at(size_of::<Header>());
        self.expected.check(bytemuck::from_bytes(header), self.from, self.status)?;
        if self.size_bytes <= SHORT {
            self.target.accept(0, &payload[..self.size_bytes]);
            (self.asked, self.taken) = (self.size_bytes, self.size_bytes);
        }
        self.ask().map_err(Failure::Error)
    }

    /// Asks MPI for as many segments as the window allows.
    fn ask(&mut self) -> Result<()> {
        while self.asked < self.size_bytes && self.segments.len() < self.link.window {
            let segment = self.link.segment(self.asked, self.size_bytes);
            let (size, place) = (segment.len(), self.link.place(segment.start));
            if self.staging.len() <= place {
                self.staging.resize_with(place + 1, Scratch::default);
            }
            let memory = match &mut self.target {
                Target::Place(place) => place[segment.clone()].as_mut_ptr(),
                Target::Apply { .. } => self.staging[place].take(size).as_mut_ptr(),
            };
            // SAFETY: the memory is a segment of the target or a staging segment, of `size` bytes, and
            // nothing touches it until the request is done: segments do not overlap, and a staging segment
            // is asked for again only when the one before it there was taken in. If the exchange fails, as
            // in `Sending::give`.
            let request =
                unsafe { self.link.comm.begin_receive(memory, size as c_int, self.from, SEGMENT_TAG) }?;
            self.segments.push_back(request);
            self.asked = segment.end;
        }
        Ok(())
    }

    /// Takes in the segment that has just arrived.
    fn take_segment(&mut self) {
        let segment = self.link.segment(self.taken, self.size_bytes);
        self.taken = segment.end;
        if let Target::Apply { .. } = self.target {
            let place = self.link.place(segment.start);
            self.target.accept(segment.start, self.staging[place].take(segment.len()));
        }
    }

    fn lends_memory(&self) -> bool {
        matches!(self.target, Target::Place(_)) && !self.segments.is_empty()
    }
}

impl Half for Receiving<'_> {
    fn other(&self) -> Rank {
        self.from
    }

    fn is_done(&self) -> bool {
        self.header.is_none() && self.taken == self.size_bytes
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        if let Some(header) = &mut self.header {
            if !header.is_done().map_err(Failure::Error)? {
                return Ok(false);
            }
            self.header = None;
            self.take_first()?;
            return Ok(true);
        }
        let Some(oldest) = self.segments.front_mut() else { return Ok(false) };
        if !oldest.is_done().map_err(Failure::Error)? {
            return Ok(false);
        }
        self.segments.pop_front();
        self.take_segment();
        self.ask().map_err(Failure::Error)?;
        Ok(true)
    }
}
