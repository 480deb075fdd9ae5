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
pub(crate) use handshake::{Handshake, Reply};
pub(crate) use message::{Claim, Frames, LONGEST, LONGEST_HELLO, Message, PREFIX, framed};

/// The time since a moment that the driver chooses.
pub(crate) type Time = Duration;

/// The interval of keepalives.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(1);
/// The longest time that a member that takes part in an agreement may be silent before it counts as lost.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// The time that a member refuses to speak with a lost one before it acknowledges a view without it. It is longer than the time within which the
/// driver of the lost member detects that the connection is silent, so that the lost member cannot mistake a later end of this one for an
/// ordinary death.
pub(crate) const FENCE: Duration = Duration::from_secs(10);
/// The longest time that a connection may take to identify itself, and members to connect.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// The limit of connections that have not identified themselves. Beyond it, the oldest are closed: a member identifies itself at once.
pub(crate) const MOST_STRANGERS: usize = 64;
