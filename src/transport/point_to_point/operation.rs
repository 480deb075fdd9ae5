//! Sends and receives that are under way.

use std::fmt;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use crate::dtype::DType;
use crate::error::{Place, Result};
use crate::record::POINT_TO_POINT;
use crate::transport::waiting::AWAKE;
use crate::transport::{Deadlines, Header};

/// Called with the other rank when an operation has ended.
pub(crate) type OnEnd = Box<dyn FnOnce(Result<Rank>) + std::marker::Send>;

/// The options of a call.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) dtype: DType,
    pub(crate) tag: u32,
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    pub(crate) deadlines: Deadlines,
    /// The name of the call in errors, if it is another than "send" or "receive".
    pub(crate) operation: Option<&'static str>,
}

/// A send or a receive.
pub(super) struct Operation {
    /// The number among those of this rank.
    pub(super) ticket: u64,
    pub(super) header: Header,
    pub(super) operation: &'static str,
    /// The number among the messages to or from the other rank.
    pub(super) number: u64,
    deadlines: Deadlines,
    times: Option<Times>,
    /// `None` for a blocking call, which polls for its result.
    pub(super) on_end: Option<OnEnd>,
}

/// The times of an operation that takes so long that the clock was read.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// When there was progress last.
    moved: Instant,
    /// The time of the latest progress, or when a rank was last seen in a quiet section.
    resumed: Instant,
    /// When it was first seen that the other rank is gone.
    gone: Option<Instant>,
}

impl Operation {
    pub(super) fn new(
        ticket: u64,
        header: Header,
        (operation, number): (&'static str, u64),
        deadlines: Deadlines,
        on_end: Option<OnEnd>,
    ) -> Self {
        Self { ticket, header, operation, number, deadlines, times: None, on_end }
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.on_end.is_none()
    }

    /// The position of rank `rank` in an error.
    pub(super) fn place(&self, rank: Rank) -> Place {
        Place {
            rank,
            operation: self.operation,
            sequence: self.number,
            algorithm: POINT_TO_POINT,
            phase: POINT_TO_POINT,
            step: self.header.tag() as usize,
        }
    }

    /// There was progress: the deadline begins again.
    pub(super) fn renew(&mut self) {
        self.times = None;
    }

    /// Returns the silence of the other rank, and whether that is longer than its deadline allows.
    pub(super) fn silence(&mut self, now: Instant, is_quiet: bool) -> (Duration, bool) {
        let times = self.times.get_or_insert(Times { moved: now, resumed: now, gone: None });
        if is_quiet {
            times.resumed = now;
        }
        let (silent, Deadlines { timeout, quiet }) = (now - times.moved, self.deadlines);
        (silent, now - times.resumed > timeout || silent > timeout.max(quiet))
    }

    /// Returns whether the other rank has been silent for much longer than a message takes.
    pub(super) fn is_long(&self, now: Instant) -> bool {
        self.times.is_some_and(|times| now - times.moved > AWAKE)
    }

    /// Returns whether what a rank that is gone has sent must have arrived. Not at the first look: it may have arrived since the
    /// last poll.
    pub(super) fn is_over(&mut self, now: Instant, straggling: Duration) -> bool {
        let Some(times) = &mut self.times else { return false };
        match times.gone {
            Some(gone) => now - gone >= straggling,
            None => {
                times.gone = Some(now);
                false
            }
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("operation", &self.operation).field("number", &self.number).finish()
    }
}

/// A message to a rank that is not yet sent.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) call: Operation,
    pub(super) bytes: *const [u8],
    /// The bytes that the link has taken.
    pub(super) given: usize,
}

/// A receive that has no message yet, or whose message is arriving.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) call: Operation,
    /// `None` for any.
    pub(super) from: Option<Rank>,
    pub(super) place: *mut [u8],
}

impl Receive {
    /// Returns whether the receive is for a message of this header from that rank.
    pub(super) fn is_for(&self, from: Rank, header: &Header) -> bool {
        self.from.is_none_or(|only| only == from) && self.call.header.tag() == header.tag()
    }
}
