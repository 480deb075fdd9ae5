//! Attempts to shrink a world: the attempts that a rank has joined, and the bytes that it publishes to their members.
//!
//! Several processes read and write this concurrently, and any of them may end at any moment. Zero is the initial state.

use crate::sync::{AtomicU64, Ordering, fence};

pub(crate) const PIECE_BYTES: usize = 8 * WORDS;
const WORDS: usize = if cfg!(loom) { 1 } else { 128 };

#[repr(C)]
pub(super) struct Attempts {
    /// Twice the number of attempts that the rank has joined, plus one once it is excluded from the others.
    joined: AtomicU64,
    /// Its latest pieces. A rank publishes a piece once it has read the previous piece of all members. So all of them have read the
    /// piece before that.
    pieces: [Piece; 2],
}

/// A part of the bytes that a rank publishes to the other members of an attempt.
#[repr(C)]
struct Piece {
    /// The attempt and the number of the piece; 0 while it is being written.
    number: AtomicU64,
    /// The number of bytes in this and the following pieces.
    rest: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Identifies a piece: the attempt, and the number of the piece within it, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceNumber {
    pub(crate) attempt: u32,
    pub(crate) piece: u32,
}

impl PieceNumber {
    fn bits(self) -> u64 {
        u64::from(self.attempt) << 32 | u64::from(self.piece)
    }
}

impl Attempts {
    /// Joins an attempt, as the rank of this row. The first attempt is 1. Returns false if the rank is excluded.
    pub(super) fn join(&self, attempt: u32) -> bool {
        let before = 2 * (u64::from(attempt) - 1);
        // Acquire: a rank that observes the exclusion also observes all writes before it.
        self.joined.compare_exchange(before, before + 2, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(super) fn exclude(&self) {
        self.joined.fetch_or(1, Ordering::AcqRel);
    }

    /// Returns whether the rank is a member of an attempt; `None` as long as it may still join. A known result does not change.
    pub(super) fn is_member(&self, attempt: u32) -> Option<bool> {
        let joined = self.joined.load(Ordering::Acquire);
        if joined / 2 >= u64::from(attempt) {
            return Some(true);
        }
        (joined % 2 == 1).then_some(false)
    }

    /// Returns whether the rank publishes no more pieces in an attempt that it has joined, since it is excluded or has joined a later one.
    pub(super) fn has_ended(&self, attempt: u32) -> bool {
        self.joined.load(Ordering::Acquire) > 2 * u64::from(attempt)
    }

    /// Publishes a piece, as the rank of this row: the first [`PIECE_BYTES`] of these bytes.
    pub(super) fn publish(&self, number: PieceNumber, bytes: &[u8]) {
        let piece = &self.pieces[number.piece as usize % 2];
        piece.number.store(0, Ordering::Relaxed);
        // Pairs with the fence in `published`: a reader of a word of this piece does not read the number of the previous piece
        // afterwards.
        fence(Ordering::Release);
        piece.rest.store(bytes.len() as u64, Ordering::Relaxed);
        for (word, bytes) in piece.words.iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        // Pairs with the first load in `published`.
        piece.number.store(number.bits(), Ordering::Release);
    }

    /// Returns the bytes of a piece, and the number of bytes of it and the following pieces, if the rank has published it and not replaced it.
    pub(super) fn published(&self, number: PieceNumber) -> Option<(Vec<u8>, usize)> {
        let piece = &self.pieces[number.piece as usize % 2];
        if piece.number.load(Ordering::Acquire) != number.bits() {
            return None;
        }
        let rest = piece.rest.load(Ordering::Relaxed) as usize;
        let here = rest.min(PIECE_BYTES);
        let words = piece.words[..here.div_ceil(8)].iter();
        let mut bytes: Vec<_> = words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        bytes.truncate(here);
        fence(Ordering::Acquire);
        (piece.number.load(Ordering::Relaxed) == number.bits()).then_some((bytes, rest))
    }
}

#[cfg(all(test, loom))]
mod tests {
    mod orders;
}

#[cfg(all(test, not(loom)))]
mod tests;
