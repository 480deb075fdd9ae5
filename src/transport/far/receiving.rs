//! The receiving half of an exchange.

use unisono_collectives::Rank;

use super::Far;
use crate::transport::half::{Half, Polled};
use crate::transport::link::PIECE;
use crate::transport::{Failure, Header, Incoming, Target};

/// A message on its way from the link to its target.
pub(super) struct Receiving<'a> {
    far: &'a Far,
    from: Rank,
    expected: Header,
    target: Target<'a>,
    size_bytes: usize,
    is_checked: bool,
    is_done: bool,
    /// Where the piece that arrives begins, how much of it has arrived, and how much of that the target has consumed.
    piece: usize,
    taken: usize,
    consumed: usize,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(far: &'a Far, header: &Header, Incoming { from, target }: Incoming<'a>) -> Self {
        let size_bytes = target.size_bytes();
        let expected = header.of_size(size_bytes);
        let (is_checked, is_done, piece, taken, consumed) = Default::default();
        Self { far, from, expected, target, size_bytes, is_checked, is_done, piece, taken, consumed }
    }

    /// Receives what is there into its place, or into a piece that stays in the cache.
    fn receive(&mut self) -> Result<Polled, Failure> {
        let mut link = self.far.link.borrow_mut();
        if let Target::Place(place) = &mut self.target {
            return link.receive(self.from, place, &mut self.taken);
        }
        let mut memory = self.far.piece.borrow_mut();
        let piece = memory.take(PIECE.min(self.size_bytes - self.piece));
        let polled = link.receive(self.from, piece, &mut self.taken)?;
        let whole = self.taken - self.taken % self.target.wire_size_bytes();
        self.target.accept(self.piece + self.consumed, &piece[self.consumed..whole]);
        self.consumed = whole;
        if polled == Polled::Done {
            (self.piece, self.taken, self.consumed) = (self.piece + piece.len(), 0, 0);
        }
        Ok(if self.piece < self.size_bytes && polled == Polled::Done { Polled::Moved } else { polled })
    }
}

impl Half for Receiving<'_> {
    fn other(&self) -> Rank {
        self.from
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.is_done
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.is_done || self.far.posts.borrow().receive_from(self.from) {
            return Ok(false);
        }
        if !self.is_checked {
            let Some(theirs) = self.far.link.borrow_mut().ahead(self.from)? else { return Ok(false) };
            self.expected.check(&theirs, self.from, &self.far.status)?;
            self.is_checked = true;
        }
        let polled = self.receive()?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }
}
