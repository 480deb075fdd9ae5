//! One message between this rank and another, in progress over a link.

use unisono_collectives::Rank;

use crate::status::StatusBoard;
use crate::transport::half::Polled;
use crate::transport::link::Link;
use crate::transport::{Failure, Header, Outgoing};

/// A message to or from a rank, without its bytes.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) other: Rank,
    header: Header,
    /// The number of bytes that the link has accepted, or delivered into the current place.
    pub(super) moved: usize,
    /// Whether the header of a received message is as expected.
    is_checked: bool,
    pub(super) is_done: bool,
}

impl Transfer {
    pub(super) fn new(other: Rank, header: &Header, size_bytes: usize) -> Self {
        Self { other, header: header.of_size(size_bytes), moved: 0, is_checked: false, is_done: false }
    }

    /// Continues to send these bytes. Returns whether there was progress.
    #[inline]
    pub(super) fn send(&mut self, link: &mut dyn Link, bytes: &[u8]) -> Result<bool, Failure> {
        let polled = link.send(&self.header, Outgoing { to: self.other, bytes }, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }

    /// Continues to receive into this place, once the header is as expected. Returns whether there was progress.
    #[inline]
    pub(super) fn receive(
        &mut self,
        link: &mut dyn Link,
        place: &mut [u8],
        status: &StatusBoard,
    ) -> Result<bool, Failure> {
        if !self.is_checked {
            let Some(theirs) = link.ahead(self.other)? else { return Ok(false) };
            self.header.check(&theirs, self.other, status)?;
            self.is_checked = true;
        }
        let polled = link.receive(self.other, place, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }

    /// Makes the next [`Transfer::receive`] fill another place.
    pub(super) fn next_place(&mut self) {
        (self.moved, self.is_done) = (0, false);
    }
}
