//! The agreement of a failed world's ranks on the survivors, and the values that these exchange.
//!
//! `docs/decisions/0005-shrink-and-grow.md` explains why all survivors agree.

use unisono_collectives::Rank;

use super::super::attempts::PieceNumber;
use super::StatusBoard;

impl StatusBoard {
    /// Joins an attempt to shrink. The first attempt is 1. Returns false if the other ranks continue without this one.
    pub(crate) fn join_attempt(&self, attempt: u32) -> bool {
        self.own().attempts.join(attempt)
    }

    /// Returns whether a rank that shares this status board is a member of an attempt; `None` as long as it may still join, since
    /// it has neither died nor left. A known result is identical on all ranks and does not change.
    pub(crate) fn is_member(&self, rank: Rank, attempt: u32) -> Option<bool> {
        let attempts = &self.layout.row(self.position_of(rank)?).attempts;
        if attempts.is_member(attempt).is_none() && self.has_ended(rank) {
            attempts.exclude();
        }
        attempts.is_member(attempt)
    }

    /// Publishes a piece to the other members of an attempt: the first [`PIECE_BYTES`](super::super::PIECE_BYTES) of these bytes.
    pub(crate) fn publish_piece(&self, number: PieceNumber, bytes: &[u8]) {
        self.own().attempts.publish(number, bytes);
    }

    /// Returns a piece of a member of an attempt, and the number of bytes of it and the following pieces; `None` if the member has
    /// not published it yet, and [`Gone`] if it never will.
    pub(crate) fn piece(&self, rank: Rank, number: PieceNumber) -> Result<Option<(Vec<u8>, usize)>, Gone> {
        let attempts = &self.layout.row(self.position_of(rank).ok_or(Gone)?).attempts;
        let published = attempts.published(number);
        if published.is_some() {
            return Ok(published);
        }
        if self.has_ended(rank) {
            attempts.exclude();
        }
        if !attempts.has_ended(number.attempt) {
            return Ok(None);
        }
        // It may have published the piece just before.
        attempts.published(number).map(Some).ok_or(Gone)
    }

    fn has_ended(&self, rank: Rank) -> bool {
        self.has_died(rank) || self.has_left(rank)
    }
}

/// The error that a member publishes no more pieces in an attempt: it has died or left, or is in a later attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;
