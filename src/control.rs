//! The control protocol: how processes of a job identify each other, detect that others have ended or are unreachable, report
//! failures, and agree on the survivors.
//!
//! It is a state machine without sockets, clock, threads or environment. Its driver passes [`Event`]s with the time, and carries out
//! [`Action`]s. So a simulation, in its `tests`, runs it in virtual time. The
//! [decision](../docs/decisions/0004-one-control-protocol.md) describes the protocol and why it is safe.

use std::time::Duration;

mod agreement;
mod endpoint;
mod handshake;
mod message;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use agreement::Outcome;
pub(crate) use endpoint::{Action, Endpoint, Event, Gathered, How, LinkId, Report, Setup};
pub(crate) use handshake::{Handshake, Hidden, Reply};
pub(crate) use message::{Claim, Frames, LONGEST, LONGEST_HELLO, Message, PREFIX, framed};

/// The time since a moment that the driver chooses.
pub(crate) type Time = Duration;

/// The interval of keepalives.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(1);
/// The longest silence of a member that takes part in an agreement. After that it counts as lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// The time for which a member rejects the messages of a lost one before it acknowledges a view without it. It exceeds the time
/// after which the lost member's driver detects a silent connection. So the lost member cannot mistake a later end of this one for
/// the death of a process.
pub(crate) const FENCE: Duration = Duration::from_secs(10);
/// The longest time in which a connection must identify itself, and in which members must connect.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// The limit of connections that have not identified themselves. Beyond it, the oldest are closed: a member identifies itself at once.
pub(crate) const MOST_STRANGERS: usize = 64;
