//! The sending half of an exchange.

use unisono_collectives::Rank;

use super::Far;
use crate::transport::half::{Half, Polled};
use crate::transport::{Failure, Header, Outgoing};

/// A message on its way to the link.
pub(super) struct Sending<'a> {
    far: &'a Far,
    to: Rank,
    header: Header,
    bytes: &'a [u8],
    given: usize,
    is_done: bool,
}

impl<'a> Sending<'a> {
    pub(super) fn new(far: &'a Far, header: &Header, outgoing: Outgoing<'a>) -> Self {
        let Outgoing { to, bytes } = outgoing;
        Self { far, to, header: header.of_size(bytes.len()), bytes, given: 0, is_done: false }
    }
}

impl Half for Sending<'_> {
    fn other(&self) -> Rank {
        self.to
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.is_done
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.is_done || self.far.posts.borrow().send_to(self.to) {
            return Ok(false);
        }
        let outgoing = Outgoing { to: self.to, bytes: self.bytes };
        let polled = self.far.link.borrow_mut().send(&self.header, outgoing, &mut self.given)?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }
}
