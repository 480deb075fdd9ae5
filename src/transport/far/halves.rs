//! The halves of an exchange over a link.

use unisono_collectives::Rank;

use super::Far;
use super::transfer::Transfer;
use crate::transport::half::Half;
use crate::transport::link::PIECE;
use crate::transport::{Failure, Header, Incoming, Outgoing, Target};

/// A message that is sent over the link.
pub(super) struct Sending<'a> {
    far: &'a Far,
    transfer: Transfer,
    bytes: &'a [u8],
}

/// A message that is received over the link.
pub(super) struct Receiving<'a> {
    far: &'a Far,
    transfer: Transfer,
    target: Target<'a>,
    size_bytes: usize,
    /// The start of the current piece.
    piece: usize,
    /// The number of bytes of the piece that the target has consumed.
    consumed: usize,
}

impl<'a> Sending<'a> {
    pub(super) fn new(far: &'a Far, header: &Header, Outgoing { to, bytes }: Outgoing<'a>) -> Self {
        Self { far, transfer: Transfer::new(to, header, bytes.len()), bytes }
    }
}

impl Half for Sending<'_> {
    fn other(&self) -> Rank {
        self.transfer.other
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.transfer.is_done
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.is_done() || self.far.posts.borrow().has_unsent_to(self.other()) {
            return Ok(false);
        }
        self.transfer.send(&mut **self.far.link.borrow_mut(), self.bytes)
    }
}

impl<'a> Receiving<'a> {
    pub(super) fn new(far: &'a Far, header: &Header, Incoming { from, target }: Incoming<'a>) -> Self {
        let size_bytes = target.size_bytes();
        let transfer = Transfer::new(from, header, size_bytes);
        Self { far, transfer, target, size_bytes, piece: 0, consumed: 0 }
    }
}

impl Half for Receiving<'_> {
    fn other(&self) -> Rank {
        self.transfer.other
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.transfer.is_done
    }

    /// Receives the bytes that have arrived into their place, or into a piece that stays in the cache.
    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        let Self { far, transfer, target, size_bytes, piece, consumed } = self;
        if transfer.is_done || far.posts.borrow().has_awaited_from(transfer.other) {
            return Ok(false);
        }
        let (mut link, status) = (far.link.borrow_mut(), &far.status);
        if let Target::Place(place) = target {
            return transfer.receive(&mut **link, place, status);
        }
        let mut memory = far.piece.borrow_mut();
        let place = memory.take(PIECE.min(*size_bytes - *piece));
        let moved = transfer.receive(&mut **link, place, status)?;
        let whole = transfer.moved - transfer.moved % target.wire_size_bytes();
        target.accept(*piece + *consumed, &place[*consumed..whole]);
        *consumed = whole;
        if transfer.is_done && *piece + place.len() < *size_bytes {
            (*piece, *consumed) = (*piece + place.len(), 0);
            transfer.next_place();
        }
        Ok(moved)
    }
}
