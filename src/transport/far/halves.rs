//! Messages in progress over a link, and the halves of an exchange.

use unisono_collectives::Rank;

use super::Far;
use crate::status::StatusBoard;
use crate::transport::half::{Half, Polled};
use crate::transport::link::{Link, PIECE};
use crate::transport::{Failure, Header, Incoming, Outgoing, Target};

/// A message to or from a rank, in progress over a link, without its bytes.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) other: Rank,
    header: Header,
    /// The number of bytes that the link has accepted, or delivered into the current place.
    moved: usize,
    /// Whether the header of a received message is as expected.
    is_checked: bool,
    pub(super) is_done: bool,
}

impl Transfer {
    pub(super) fn new(other: Rank, header: &Header, size_bytes: usize) -> Self {
        Self { other, header: header.of_size(size_bytes), moved: 0, is_checked: false, is_done: false }
    }

    /// Returns the size of the whole message.
    pub(super) fn size_bytes(&self) -> usize {
        self.header.size_bytes()
    }

    /// Continues to send these bytes.
    #[inline]
    pub(super) fn send(&mut self, link: &mut dyn Link, bytes: &[u8]) -> Result<Polled, Failure> {
        let polled = link.send(&self.header, Outgoing { to: self.other, bytes }, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled)
    }

    /// Continues to receive into this place, once the header is as expected.
    #[inline]
    pub(super) fn receive(
        &mut self,
        link: &mut dyn Link,
        place: &mut [u8],
        status: &StatusBoard,
    ) -> Result<Polled, Failure> {
        if !self.is_checked {
            let Some(theirs) = link.ahead(self.other)? else { return Ok(Polled::Idle) };
            self.header.check(&theirs, self.other, status)?;
            self.is_checked = true;
        }
        let polled = link.receive(self.other, place, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled)
    }
}

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
    fn awaits(&self) -> Option<Rank> {
        Some(self.transfer.other)
    }

    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        if self.far.posts.borrow().has_unsent_to(self.transfer.other) {
            return Ok(Polled::Idle);
        }
        self.transfer.send(&mut **self.far.link.borrow_mut(), self.bytes)
    }
}

impl<'a> Receiving<'a> {
    pub(super) fn new(far: &'a Far, header: &Header, Incoming { from, target }: Incoming<'a>) -> Self {
        let transfer = Transfer::new(from, header, target.size_bytes());
        Self { far, transfer, target, piece: 0, consumed: 0 }
    }
}

impl Half for Receiving<'_> {
    fn awaits(&self) -> Option<Rank> {
        Some(self.transfer.other)
    }

    /// Receives the bytes that have arrived into their place, or into a piece that stays in the cache.
    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        let Self { far, transfer, target, piece, consumed } = self;
        if far.posts.borrow().has_awaited_from(transfer.other) {
            return Ok(Polled::Idle);
        }
        let (mut link, status) = (far.link.borrow_mut(), &far.status);
        if let Target::Place(place) = target {
            return transfer.receive(&mut **link, place, status);
        }
        let mut memory = far.piece.borrow_mut();
        let place = memory.take(PIECE.min(transfer.size_bytes() - *piece));
        let polled = transfer.receive(&mut **link, place, status)?;
        let whole = transfer.moved - transfer.moved % target.wire_size_bytes();
        target.accept(*piece + *consumed, &place[*consumed..whole]);
        *consumed = whole;
        if polled == Polled::Done && *piece + place.len() < transfer.size_bytes() {
            (*piece, *consumed) = (*piece + place.len(), 0);
            (transfer.moved, transfer.is_done) = (0, false);
            return Ok(Polled::Moved);
        }
        Ok(polled)
    }
}
