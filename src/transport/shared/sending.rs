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

/// The way a payload is transferred.
#[derive(Debug)]
enum Way<'a> {
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
    way: Way<'a>,
    outbox: &'a mut Outbox,
    registry: &'a Registry,
    /// The bytes of the payload that have been sent.
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
        can_ask_kernel: bool,
    ) -> Self {
        let Outgoing { to: other, bytes } = outgoing;
        if outbox.sent[to] == 0 {
            board.touch_channel(from, to);
        }
        let way =
            if bytes.len() <= SHORT { Way::Short } else { Self::long_way(bytes, registry, can_ask_kernel) };
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
            way,
            outbox,
            registry,
            given: 0,
            done: false,
        }
    }

    /// Continues a message of which a part was sent before, as [`Sending::suspend`] returned.
    pub(super) fn resume(mut self, given: usize) -> Self {
        self.given = given;
        if let Way::Whole(location, lent) = &mut self.way
            && given > 0
        {
            *lent = Some(Lent::by((self.board, self.status), self.from, self.registry, *location, false));
        }
        self
    }

    /// Leaves a message under way: the bytes stay lent. Returns how much of them was sent.
    pub(super) fn suspend(mut self) -> usize {
        if let Way::Whole(_, lent) = &mut self.way {
            lent.take().into_iter().for_each(Lent::take_back);
        }
        self.given
    }

    fn long_way(bytes: &[u8], registry: &Registry, can_ask_kernel: bool) -> Way<'a> {
        if let Some(location) = registry.locate(bytes) {
            Way::Whole(location, None)
        } else if can_ask_kernel && bytes.len() >= KERNEL_BYTES {
            Way::Whole(Location::of_address(bytes), None)
        } else {
            Way::Staged
        }
    }

    fn progress_whole(&mut self, location: Location) -> bool {
        if self.given == 0 {
            let Some(stamp) = self.outbox.next(self.board, (self.from, self.to)) else { return false };
            let lent = Lent::by((self.board, self.status), self.from, self.registry, location, false);
            self.way = Way::Whole(location, Some(lent));
            self.channel.send_long(stamp, &self.header, location);
            self.outbox.sent[self.to] = stamp.number;
            self.given = self.bytes.len();
            return true;
        }
        self.done = self.channel.taken() >= self.outbox.sent[self.to];
        if self.done
            && let Way::Whole(_, lent) = &mut self.way
        {
            lent.take().into_iter().for_each(Lent::take_back);
        }
        self.done
    }

    /// Sends the next piece through staging memory, or in the slot of its message while those of other ranks use all of it: a message does
    /// not wait until another rank receives.
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
                // SAFETY: the piece is this rank's, and its last receiver has taken the message; it has room for these bytes, and is no
                // part of them.
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
        // The pieces belong to the communicator: none of the caller's memory is lent.
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
        Ok(match self.way {
            Way::Short => {
                self.done =
                    self.outbox.send_short(self.board, (self.from, self.to), &self.header, self.bytes);
                self.done
            }
            Way::Whole(location, _) => self.progress_whole(location),
            Way::Staged => self.progress_staged(),
        })
    }
}
