//! The state of a connection.

use unisono_collectives::Rank;

use super::{Frames, Handshake, Time};

/// A connection, as the protocol sees it.
#[derive(Debug)]
pub(super) struct Link {
    /// The rank at the other end, once it has proved itself.
    pub(super) peer: Option<Rank>,
    /// The rank to which this process has connected.
    pub(super) to: Option<Rank>,
    pub(super) handshake: Option<Handshake>,
    pub(super) frames: Frames,
    pub(super) since: Time,
    pub(super) heard_at: Time,
    /// Whether anything has arrived since this was last reset.
    pub(super) is_heard: bool,
    pub(super) said_goodbye: bool,
}

impl Link {
    pub(super) fn new(handshake: Handshake, to: Option<Rank>, now: Time) -> Self {
        Self { handshake: Some(handshake), to, peer: None, ..Self::trusted(0, now) }
    }

    pub(super) fn trusted(rank: Rank, now: Time) -> Self {
        Self {
            peer: Some(rank),
            to: None,
            handshake: None,
            frames: Frames::default(),
            since: now,
            heard_at: now,
            is_heard: true,
            said_goodbye: false,
        }
    }

    /// Returns whether the other side may use the connection already: it would take an end without a word for a death.
    pub(super) fn may_be_used(&self) -> bool {
        self.handshake.as_ref().is_none_or(Handshake::has_accepted)
    }

    pub(super) fn hear(&mut self, now: Time) {
        self.heard_at = now;
        self.is_heard = true;
    }

    /// Both sides have proved themselves.
    pub(super) fn identify(&mut self, rank: Rank) {
        self.peer = Some(rank);
        self.handshake = None;
    }

    /// This process did not run for so long.
    pub(super) fn delay(&mut self, gap: Time) {
        self.since += gap;
        self.heard_at += gap;
    }
}
