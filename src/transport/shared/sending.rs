//! The sending half of an exchange in shared memory.

use unisono_collectives::Rank;

use super::board::{Lent, PIECE};
use super::channel::{Channel, SHORT};
use super::{Outbox, Own};
use crate::kernels;
use crate::memory::Location;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Outgoing, Polled};

/// The size from which a kernel copy from memory that the receiver cannot access is cheaper than staging.
pub(super) const KERNEL_BYTES: usize = 64 << 10;

/// The protocol by which a payload is transferred.
#[derive(Debug, Clone, Copy)]
enum Protocol {
    /// In the slot of its message.
    Short,
    /// Read in place.
    Whole(Location),
    /// In pieces, through staging memory.
    Staged,
}

/// A message being sent to another rank.
#[derive(Debug)]
pub(in crate::transport) struct Sending<'a> {
    own: Own<'a>,
    channel: &'a Channel,
    to: usize,
    other: Rank,
    header: Header,
    bytes: &'a [u8],
    protocol: Protocol,
    /// The loan of bytes that are read in place, until the receiver has released the message.
    lent: Option<Lent<'a>>,
    outbox: &'a mut Outbox,
    /// The number of bytes of the payload that have been sent.
    given: usize,
}

impl<'a> Sending<'a> {
    #[inline]
    pub(super) fn new(
        own: Own<'a>,
        to: usize,
        header: &Header,
        Outgoing { to: other, bytes }: Outgoing<'a>,
        outbox: &'a mut Outbox,
        uses_kernel: bool,
    ) -> Self {
        if outbox.sent[to] == 0 {
            own.board.touch_channel(own.position, to);
        }
        let protocol = if bytes.len() <= SHORT {
            Protocol::Short
        } else if let Some(location) = own.registry.locate(bytes) {
            Protocol::Whole(location)
        } else if uses_kernel && bytes.len() >= KERNEL_BYTES {
            Protocol::Whole(Location::of_address(bytes))
        } else {
            Protocol::Staged
        };
        let (channel, header) = (own.board.channel(own.position, to), header.of_size(bytes.len()));
        Self { own, channel, to, other, header, bytes, protocol, lent: None, outbox, given: 0 }
    }

    /// Continues a message of which [`Sending::suspend`] returned the number of bytes sent.
    pub(super) fn resume(mut self, given: usize) -> Self {
        self.given = given;
        if given == 0 {
            return self;
        }
        // A message in pieces is done once it is all sent. This one was sent as a whole, and its memory has been detached since.
        if given == self.bytes.len() && matches!(self.protocol, Protocol::Staged) {
            self.protocol = Protocol::Whole(Location::of_address(self.bytes));
        }
        if let Protocol::Whole(location) = self.protocol {
            self.lent = Some(Lent::by(self.own, (location, None), false));
        }
        self
    }

    /// Leaves a message in transit, whose bytes stay lent. Returns the number of bytes sent.
    pub(super) fn suspend(self) -> usize {
        self.lent.into_iter().for_each(Lent::finish);
        self.given
    }

    fn progress_whole(&mut self, location: Location) -> Polled {
        if self.given == 0 {
            let Some(stamp) = self.outbox.next(self.own.board, (self.own.position, self.to)) else {
                return Polled::Idle;
            };
            self.lent = Some(Lent::by(self.own, (location, None), false));
            self.channel.send_long(stamp, &self.header, location);
            self.outbox.sent[self.to] = stamp.number;
            self.given = self.bytes.len();
            return Polled::Moved;
        }
        if self.channel.released() < self.outbox.sent[self.to] {
            return Polled::Idle;
        }
        self.lent.take().into_iter().for_each(Lent::finish);
        Polled::Done
    }

    /// Sends the next piece through staging memory, or in the slot of its message if messages to other ranks use all staging memory, so that no
    /// message waits until another rank receives.
    fn progress_staged(&mut self) -> Polled {
        let Own { position, board, .. } = self.own;
        let free = self.outbox.free_piece(board, position);
        if free.is_none() && self.outbox.has_staged(self.to) {
            return Polled::Idle;
        }
        let Some(stamp) = self.outbox.next(board, (position, self.to)) else { return Polled::Idle };
        let most = if free.is_some() { PIECE } else { SHORT };
        let bytes = &self.bytes[self.given..self.bytes.len().min(self.given + most)];
        match free {
            Some(piece) => {
                // SAFETY: the piece belongs to this rank, and its last receiver has released the message. It is large enough for these bytes, and
                // does not overlap them.
                let staged =
                    unsafe { std::slice::from_raw_parts_mut(board.piece(position, piece), bytes.len()) };
                kernels::copy(staged, bytes);
                let location = Location { segment: Location::STAGING, offset: piece as u64 };
                self.channel.send_long(stamp, &self.header, location);
                self.outbox.stage(piece, self.to, stamp.number);
            }
            None => self.channel.send_piece(stamp, &self.header, bytes),
        }
        self.outbox.sent[self.to] = stamp.number;
        self.given += bytes.len();
        // The pieces belong to the communicator, so no memory of the caller is lent.
        Polled::of(true, self.given == self.bytes.len())
    }
}

impl Half for Sending<'_> {
    fn awaits(&self) -> Option<Rank> {
        Some(self.other)
    }

    #[inline]
    fn progress(&mut self) -> Result<Polled, Failure> {
        Ok(match self.protocol {
            Protocol::Short => {
                let ends = (self.own.position, self.to);
                let sent = self.outbox.send_short(self.own.board, ends, &self.header, self.bytes);
                Polled::of(sent, sent)
            }
            Protocol::Whole(location) => self.progress_whole(location),
            Protocol::Staged => self.progress_staged(),
        })
    }
}
