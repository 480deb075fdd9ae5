//! The sending half of an exchange in shared memory.

use unisono_collectives::Rank;

use super::Outbox;
use super::board::{Board, Lent, PIECE};
use super::channel::{Channel, SHORT};
use crate::kernels;
use crate::memory::{Location, Registry};
use crate::status::StatusBoard;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Outgoing};

/// The size from which a kernel copy from memory that the receiver cannot access is cheaper than staging.
pub(super) const KERNEL_BYTES: usize = 64 << 10;

/// The protocol by which a payload is transferred.
#[derive(Debug)]
enum Protocol<'a> {
    /// In the slot of its message.
    Short,
    /// Read in place. The bytes are lent until the receiver has released the message.
    Whole(Location, Option<Lent<'a>>),
    /// In pieces, through staging memory.
    Staged,
}

/// A message being sent to another rank.
#[derive(Debug)]
pub(in crate::transport) struct Sending<'a> {
    board: &'a Board,
    status: &'a StatusBoard,
    channel: &'a Channel,
    from: usize,
    to: usize,
    other: Rank,
    header: Header,
    bytes: &'a [u8],
    protocol: Protocol<'a>,
    outbox: &'a mut Outbox,
    registry: &'a Registry,
    /// The number of bytes of the payload that have been sent.
    given: usize,
    done: bool,
}

impl<'a> Sending<'a> {
    #[inline]
    pub(super) fn new(
        (board, status): (&'a Board, &'a StatusBoard),
        (from, to): (usize, usize),
        header: &Header,
        outgoing: Outgoing<'a>,
        outbox: &'a mut Outbox,
        registry: &'a Registry,
        uses_kernel: bool,
    ) -> Self {
        let Outgoing { to: other, bytes } = outgoing;
        if outbox.sent[to] == 0 {
            board.touch_channel(from, to);
        }
        let protocol = if bytes.len() <= SHORT {
            Protocol::Short
        } else {
            Self::long_protocol(bytes, registry, uses_kernel)
        };
        let (channel, header) = (board.channel(from, to), header.of_size(bytes.len()));
        Self {
            board,
            status,
            channel,
            from,
            to,
            other,
            header,
            bytes,
            protocol,
            outbox,
            registry,
            given: 0,
            done: false,
        }
    }

    /// Continues a message of which [`Sending::suspend`] returned the number of bytes sent.
    pub(super) fn resume(mut self, given: usize) -> Self {
        self.given = given;
        // A message in pieces is done once it is all sent. This one was sent as a whole, and its memory has been detached since.
        if given > 0 && given == self.bytes.len() && matches!(self.protocol, Protocol::Staged) {
            self.protocol = Protocol::Whole(Location::of_address(self.bytes), None);
        }
        if let Protocol::Whole(location, lent) = &mut self.protocol
            && given > 0
        {
            *lent =
                Some(Lent::by((self.board, self.status), self.from, self.registry, (*location, None), false));
        }
        self
    }

    /// Leaves a message in transit, whose bytes stay lent. Returns the number of bytes sent.
    pub(super) fn suspend(mut self) -> usize {
        if let Protocol::Whole(_, lent) = &mut self.protocol {
            lent.take().into_iter().for_each(Lent::finish);
        }
        self.given
    }

    fn long_protocol(bytes: &[u8], registry: &Registry, uses_kernel: bool) -> Protocol<'a> {
        if let Some(location) = registry.locate(bytes) {
            Protocol::Whole(location, None)
        } else if uses_kernel && bytes.len() >= KERNEL_BYTES {
            Protocol::Whole(Location::of_address(bytes), None)
        } else {
            Protocol::Staged
        }
    }

    fn progress_whole(&mut self, location: Location) -> bool {
        if self.given == 0 {
            let Some(stamp) = self.outbox.next(self.board, (self.from, self.to)) else { return false };
            let lent = Lent::by((self.board, self.status), self.from, self.registry, (location, None), false);
            self.protocol = Protocol::Whole(location, Some(lent));
            self.channel.send_long(stamp, &self.header, location);
            self.outbox.sent[self.to] = stamp.number;
            self.given = self.bytes.len();
            return true;
        }
        self.done = self.channel.released() >= self.outbox.sent[self.to];
        if self.done
            && let Protocol::Whole(_, lent) = &mut self.protocol
        {
            lent.take().into_iter().for_each(Lent::finish);
        }
        self.done
    }

    /// Sends the next piece through staging memory, or in the slot of its message if messages to other ranks use all staging memory, so that no
    /// message waits until another rank receives.
    fn progress_staged(&mut self) -> bool {
        let free = self.outbox.free_piece(self.board, self.from);
        if free.is_none() && self.outbox.has_staged(self.to) {
            return false;
        }
        let Some(stamp) = self.outbox.next(self.board, (self.from, self.to)) else { return false };
        let most = if free.is_some() { PIECE } else { SHORT };
        let bytes = &self.bytes[self.given..self.bytes.len().min(self.given + most)];
        match free {
            Some(piece) => {
                // SAFETY: the piece belongs to this rank, and its last receiver has released the message. It is large enough for these bytes, and
                // does not overlap them.
                let staged = unsafe {
                    std::slice::from_raw_parts_mut(self.board.piece(self.from, piece), bytes.len())
                };
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
        self.done = self.given == self.bytes.len();
        true
    }
}

impl Half for Sending<'_> {
    fn other(&self) -> Rank {
        self.other
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.done
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.done {
            return Ok(false);
        }
        Ok(match self.protocol {
            Protocol::Short => {
                self.done =
                    self.outbox.send_short(self.board, (self.from, self.to), &self.header, self.bytes);
                self.done
            }
            Protocol::Whole(location, _) => self.progress_whole(location),
            Protocol::Staged => self.progress_staged(),
        })
    }
}
