//! The agreement of a failed world's ranks on those that go on, and the values that they exchange meanwhile.
//!
//! `docs/decisions/0005-shrink-and-grow.md` says why all survivors agree.

use unisono_collectives::Rank;

use super::super::attempts::PieceNumber;
use super::StatusBoard;

impl StatusBoard {
    /// Joins an attempt to shrink, the first of which is 1. Returns false if the other ranks go on without this one.
    pub(crate) fn join_attempt(&self, attempt: u32) -> bool {
        self.own().attempts.join(attempt)
    }

    /// Returns whether a rank that shares this status board is a member of an attempt. `None` as long as it may still join: it has
    /// neither died nor left. Once known, all ranks read the same for ever.
    pub(crate) fn is_member(&self, rank: Rank, attempt: u32) -> Option<bool> {
        let attempts = &self.layout.row(self.position_of(rank)?).attempts;
        if attempts.is_member(attempt).is_none() && self.has_ended(rank) {
            attempts.exclude();
        }
        attempts.is_member(attempt)
    }

    /// Gives a piece to the other members of an attempt: the first [`PIECE_BYTES`](super::super::PIECE_BYTES) of these bytes.
    pub(crate) fn give_piece(&self, number: PieceNumber, bytes: &[u8]) {
        self.own().attempts.give(number, bytes);
    }

    /// Returns a piece of a member of an attempt, and the number of bytes that it and the following ones have; `None` if it has
    /// not given the piece yet.
    ///
    /// # Errors
    /// [`Gone`] if it never will.
    pub(crate) fn piece(&self, rank: Rank, number: PieceNumber) -> Result<Option<(Vec<u8>, usize)>, Gone> {
        let attempts = &self.layout.row(self.position_of(rank).ok_or(Gone)?).attempts;
        let given = attempts.given(number);
        if given.is_some() {
            return Ok(given);
        }
        if self.has_ended(rank) {
            attempts.exclude();
        }
        if !attempts.has_ended(number.attempt) {
            return Ok(None);
        }
        // It may have given the piece just before.
        attempts.given(number).map(Some).ok_or(Gone)
    }

    fn has_ended(&self, rank: Rank) -> bool {
        self.has_died(rank) || self.has_left(rank)
    }
}

/// A member gives nothing more to an attempt: it has died or left, or is in a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;
