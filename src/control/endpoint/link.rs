//! The state of a connection.

use unisono_collectives::Rank;

use super::{Frames, Handshake, Time};

#[derive(Debug, Default)]
pub(super) struct Link {
    /// The rank at the other end, once it is authenticated.
    pub(super) peer: Option<Rank>,
    /// The rank to which this process has connected.
    pub(super) to: Option<Rank>,
    pub(super) handshake: Option<Handshake>,
    pub(super) frames: Frames,
    pub(super) since: Time,
    pub(super) received_at: Time,
    /// Whether data have arrived since this was last reset.
    pub(super) has_received: bool,
    pub(super) got_goodbye: bool,
}

impl Link {
    pub(super) fn new(handshake: Handshake, to: Option<Rank>, now: Time) -> Self {
        Self { handshake: Some(handshake), to, peer: None, ..Self::trusted(0, now) }
    }

    pub(super) fn trusted(rank: Rank, now: Time) -> Self {
        Self { peer: Some(rank), since: now, received_at: now, has_received: true, ..Self::default() }
    }

    /// Returns whether the other side may already use the connection. It would then mistake an end without a goodbye for the death
    /// of a process.
    pub(super) fn may_be_used(&self) -> bool {
        self.handshake.as_ref().is_none_or(Handshake::has_accepted)
    }

    /// Moves the times by a gap in which this process did not run.
    pub(super) fn delay(&mut self, gap: Time) {
        self.since += gap;
        self.received_at += gap;
    }
}
