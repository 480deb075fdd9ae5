//! Sends and receives in flight.

use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use crate::dtype::DType;
use crate::error::{Place, Result};
use crate::record::POINT_TO_POINT;
use crate::transport::waiting::{AWAKE, Silence};
use crate::transport::{Deadlines, Header};

pub(super) const SEND: &str = "send";

/// Called with the other rank when an operation has ended.
pub(crate) type OnEnd = Box<dyn FnOnce(Result<Rank>) + std::marker::Send>;

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) dtype: DType,
    pub(crate) tag: u32,
    /// The hash of the label; 0 without one.
    pub(crate) label: u64,
    pub(crate) deadlines: Deadlines,
    /// The timeout of messages that begin before any has ended, since other ranks may still be starting.
    pub(crate) first_timeout: Duration,
    /// The name of the call in errors, if it is not "send" or "receive".
    pub(crate) operation: Option<&'static str>,
}

#[cfg(test)]
impl Options {
    /// A message of bytes that may be late.
    pub(crate) const OF_BYTES: Self = Self {
        dtype: DType::U8,
        tag: 0,
        label: 0,
        deadlines: Deadlines::NEVER,
        first_timeout: Deadlines::NEVER.timeout,
        operation: None,
    };
}

pub(super) struct Operation {
    /// The number among the operations of this rank.
    pub(super) ticket: u64,
    pub(super) header: Header,
    pub(super) is_send: bool,
    pub(super) operation: &'static str,
    /// The number among the messages to or from the other rank.
    pub(super) number: u64,
    pub(super) deadlines: Deadlines,
    /// The silence of the other rank, once the clock was read.
    pub(super) silence: Option<Silence>,
    /// When it was first detected that the other rank has left.
    pub(super) gone: Option<Instant>,
    /// `None` for a blocking call, which polls for its result.
    pub(super) on_end: Option<OnEnd>,
}

impl Operation {
    pub(super) fn is_blocking(&self) -> bool {
        self.on_end.is_none()
    }

    /// Returns the position of rank `rank`, for an error.
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

    /// Renews the deadline after progress.
    pub(super) fn renew(&mut self) {
        (self.silence, self.gone) = (None, None);
    }

    /// Returns the silence of the other rank, and whether that is longer than its deadline allows.
    pub(super) fn silence(&mut self, now: Instant, is_quiet: bool) -> (Duration, bool) {
        let silence = self.silence.get_or_insert(Silence::since(now));
        (silence.lasts(now, is_quiet), silence.is_over(now, self.deadlines))
    }

    /// Returns whether the other rank has been silent for much longer than a message takes.
    pub(super) fn is_long(&self, now: Instant) -> bool {
        self.silence.is_some_and(|mut silence| silence.lasts(now, false) > AWAKE)
    }

    /// Returns whether messages that a rank sent before it left must have arrived. The first call returns false, since a message may have
    /// arrived after the last poll.
    pub(super) fn is_over(&mut self, now: Instant, grace: Duration) -> bool {
        match self.gone {
            Some(gone) => now - gone >= grace,
            None => {
                self.gone = Some(now);
                false
            }
        }
    }
}

/// A message to a rank that is not yet sent.
pub(super) struct Send {
    pub(super) call: Operation,
    pub(super) bytes: *const [u8],
    /// The progress of the link, initially 0.
    pub(super) given: usize,
}

/// A receive that has no message yet, or whose message is arriving.
pub(super) struct Receive {
    pub(super) call: Operation,
    /// `None` for any source.
    pub(super) from: Option<Rank>,
    pub(super) place: *mut [u8],
}

impl Receive {
    /// Returns whether the receive is for messages of that rank.
    pub(super) fn is_from(&self, from: Rank) -> bool {
        self.from.is_none_or(|only| only == from)
    }

    /// Returns whether the receive is for a message of this header from that rank.
    pub(super) fn is_for(&self, from: Rank, header: &Header) -> bool {
        self.is_from(from) && self.call.header.tag() == header.tag()
    }
}
