//! The receiving half of an exchange in shared memory.

use unisono_collectives::Rank;

use super::Own;
use super::board::PIECE;
use super::channel::{Channel, Message, SHORT};
use super::reach::{Reach, access_failure};
use crate::kernels;
use crate::memory::Location;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Incoming, Polled, Target};

/// A message being received from another rank.
#[derive(Debug)]
pub(in crate::transport) struct Receiving<'a> {
    own: Own<'a>,
    channel: &'a Channel,
    from: usize,
    other: Rank,
    expected: Header,
    target: Target<'a>,
    size_bytes: usize,
    /// The number of messages received from this rank.
    received: &'a mut u64,
    reach: &'a mut Reach,
    /// The number of bytes of the payload that have been consumed.
    pub(super) taken: usize,
}

impl<'a> Receiving<'a> {
    #[inline]
    pub(super) fn new(
        own: Own<'a>,
        from: usize,
        header: &Header,
        Incoming { from: other, target }: Incoming<'a>,
        received: &'a mut u64,
        reach: &'a mut Reach,
    ) -> Self {
        if *received == 0 {
            own.board.touch_channel(from, own.position);
        }
        let (channel, size_bytes) = (own.board.channel(from, own.position), target.size_bytes());
        let expected = header.of_size(size_bytes);
        Self { own, channel, from, other, expected, target, size_bytes, received, reach, taken: 0 }
    }

    /// Consumes a payload outside the slot.
    fn take_long(&mut self, number: u64, location: Location) -> Result<(), Failure> {
        let Own { position, board, status, .. } = self.own;
        if location.segment == Location::SLOT {
            let size_bytes = SHORT.min(self.size_bytes - self.taken);
            self.target.accept(self.taken, self.channel.piece(number, size_bytes));
            self.taken += size_bytes;
            return Ok(());
        }
        if location.segment == Location::STAGING {
            let size_bytes = PIECE.min(self.size_bytes - self.taken);
            let piece = board.piece(self.from, location.offset as usize);
            // SAFETY: the sender has written this many bytes of the piece, and does not access it before the message is released. No other rank does.
            let bytes = unsafe { std::slice::from_raw_parts_mut(piece, size_bytes) };
            kernels::claim(bytes);
            self.target.accept(self.taken, bytes);
            self.taken += size_bytes;
            return Ok(());
        }
        let Some(_inside) = board.enter(position, std::iter::once(self.from)) else {
            // The sender has failed. The next check reports it.
            return Ok(());
        };
        let accepted = self.reach.accept(self.from, location, self.size_bytes, &mut self.target);
        accepted.map_err(|error| access_failure(error, status))?;
        // Otherwise the sender has failed in the meantime, and may have changed or freed the memory.
        if board.withdrawn(std::iter::once(self.from)).is_none() {
            self.taken = self.size_bytes;
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self, number: u64, message: &Message) -> Result<Polled, Failure> {
        self.channel.check(number, message, &self.expected, self.other, self.own.status)?;
        let before = self.taken;
        if self.size_bytes <= SHORT {
            self.target.accept(0, self.channel.payload(number, message, self.size_bytes));
            self.taken = self.size_bytes;
        } else {
            self.take_long(number, message.location())?;
            if self.taken == before {
                return Ok(Polled::Idle);
            }
        }
        self.channel.release(number);
        *self.received = number;
        Ok(Polled::of(true, self.taken == self.size_bytes))
    }
}

impl Half for Receiving<'_> {
    fn awaits(&self) -> Option<Rank> {
        Some(self.other)
    }

    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        let number = *self.received + 1;
        match self.channel.arrived(number) {
            None => Ok(Polled::Idle),
            Some(message) => self.take(number, message),
        }
    }
}
