//! One exchange over MPI: post, poll, and consume piece by piece.
//!
//! A message is a header, followed by its payload if that is short ([`SHORT`]). A longer payload follows in segments, sent from
//! where it lies. Segments that are only stored are received in place; those that are reduced are received into a few staging
//! segments, so that one is in transit while another is reduced. Counts stay far below the 2^31 limit of MPI.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use unisono_collectives::Rank;

use super::ending::{end_job, report_failure};
use super::flight::Flights;
use super::overheard::{Listening, Overheard};
use super::sys::{Comm, Request};
use super::wire::{FIRST, FIRST_TAG, SEGMENT_TAG};
use crate::error::Result;
use crate::kernels;
use crate::memory::Scratch;
use crate::status::{FailureReport, StatusBoard, panicked};
use crate::transport::half::{Half, complete};
use crate::transport::{Deadlines, FAR_SEGMENT, Failure, Header, Incoming, Outgoing, Target, Waiting};

/// The largest payload sent with its header.
pub(super) const SHORT: usize = FIRST - size_of::<Header>();
/// The number of segments in flight in each direction, inside a node.
const WINDOW: usize = 3;
/// The number in flight between nodes: enough to keep the link busy while a rank, or the core that it shares, does something
/// else.
const FAR_WINDOW: usize = 32;

/// The buffers of a rank's messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) spins: u32,
    /// The segment size of longer payloads.
    segment: usize,
    sent: Scratch,
    received: Scratch,
    /// Whether each rank of the world is on another node.
    far: Vec<bool>,
    staging: Vec<Scratch>,
    pub(super) overheard: Overheard,
    /// Posted exchanges.
    pub(super) flights: Flights,
    /// Whether an exchange failed while MPI still held the caller's buffer.
    stranded: bool,
    /// The failure report, for a panic in the middle of an exchange.
    report: Option<Arc<dyn FailureReport>>,
}

impl Messages {
    pub(super) fn new(spins: u32, segment: usize, far: Vec<bool>) -> Self {
        Self { spins, segment, far, ..Self::default() }
    }

    /// The parameters of long messages between this rank and another.
    pub(super) fn link(&self, comm: Comm, other: Rank) -> Link {
        if self.far[other] {
            Link { comm, segment: self.segment.min(FAR_SEGMENT), window: FAR_WINDOW }
        } else {
            Link { comm, segment: self.segment, window: WINDOW }
        }
    }

    /// Sets how often a rank polls before it yields.
    pub(super) fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    pub(super) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        self.report = Some(report);
    }

    /// Whether MPI may still access a buffer lent to a failed exchange.
    pub(super) fn are_stranded(&self) -> bool {
        self.stranded
    }

    /// Sends and receives at most one message each. On success, MPI no longer needs either buffer.
    pub(super) fn exchange(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let mut waiting = Waiting::new(self.spins, deadlines, status);
        self.halves((comm, status), header, outgoing, incoming, |sending, receiving, mut listening| {
            begin(sending, receiving, &mut listening, &mut waiting)?;
            complete(sending, receiving, waiting, |other, waiting| listening.look_around(other, waiting))
        })
    }

    /// Completes both halves with `exchange`, and ensures that MPI keeps no buffer that it should not.
    pub(super) fn halves(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        header: &Header,
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
            outgoing.zip(to).map(|(outgoing, link)| Sending::new(link, header, outgoing, &mut self.sent));
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

/// Starts both halves.
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

/// Ends the job on a panic, which must not free memory that MPI still accesses.
struct AbortOnPanic<'a> {
    report: Option<&'a dyn FailureReport>,
    status: &'a StatusBoard,
}

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        report_failure(self.report, self.status, (self.status.rank(), &panicked()));
        end_job(self.status);
    }
}

/// What both halves share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) comm: Comm,
    pub(super) segment: usize,
    pub(super) window: usize,
}

impl Link {
    /// The segment of a payload of `size_bytes` that starts at `start`.
    pub(super) fn segment(self, start: usize, size_bytes: usize) -> Range<usize> {
        start..size_bytes.min(start + self.segment)
    }

    /// The staging segment for the segment that starts at `start`.
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
    /// How much of a long payload has been posted.
    given: usize,
    requests: VecDeque<Request>,
}

impl<'a> Sending<'a> {
    fn new(link: Link, header: &Header, outgoing: Outgoing<'a>, memory: &'a mut Scratch) -> Self {
        let Outgoing { to, bytes } = outgoing;
        let short = if bytes.len() <= SHORT { bytes } else { &[] };
        let first = memory.take(size_of::<Header>() + short.len());
        first[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header.of_size(bytes.len())));
        kernels::copy(&mut first[size_of::<Header>()..], short);
        let given = short.len();
        Self { link, to, bytes, first, given, requests: VecDeque::with_capacity(WINDOW) }
    }

    /// Posts all sends that the window allows before any receive completes: MPI may copy an incoming segment inside any call,
    /// while the other rank waits for our first segment.
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
    /// How much of the payload has been posted, and how much consumed.
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

    /// Posts the receive of the first message, unless it was overheard before.
    fn begin(&mut self, overheard: Option<Scratch>) -> Result<(), Failure> {
        if let Some(mut message) = overheard {
            kernels::copy(self.first, message.take(FIRST));
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

    /// Checks that the sender is in the same collective, and consumes a short payload.
    fn take_first(&mut self) -> Result<(), Failure> {
        let (header, payload) = self.first.split_at(size_of::<Header>());
        self.expected.check(bytemuck::from_bytes(header), self.from, self.status)?;
        if self.size_bytes <= SHORT {
            self.target.accept(0, &payload[..self.size_bytes]);
            (self.asked, self.taken) = (self.size_bytes, self.size_bytes);
        }
        self.ask().map_err(Failure::Error)
    }

    /// Posts all receives that the window allows.
    fn ask(&mut self) -> Result<()> {
        while self.asked < self.size_bytes && self.segments.len() < self.link.window {
            let segment = self.link.segment(self.asked, self.size_bytes);
            let (size, place) = (segment.len(), self.link.place(segment.start));
            if self.staging.len() <= place {
                self.staging.resize_with(place + 1, Scratch::default);
            }
            let memory = match &mut self.target {
                Target::Place(place) => place[segment.clone()].as_mut_ptr(),
                Target::Apply { .. } | Target::Custom { .. } => self.staging[place].take(size).as_mut_ptr(),
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

    /// Consumes the segment that has just arrived.
    fn take_segment(&mut self) {
        let segment = self.link.segment(self.taken, self.size_bytes);
        self.taken = segment.end;
        if !matches!(self.target, Target::Place(_)) {
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
