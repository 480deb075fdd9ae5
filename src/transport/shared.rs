//! Ranks that share memory: threads of a process, or processes of a node.
//!
//! All communication uses a [`Board`] in shared memory. A short message is eager: the sender copies it into a slot of a channel and
//! continues. A longer one is read in place if the receiver can access it, while the sender waits. Otherwise it is copied piece by piece
//! through staging memory, or by the kernel. No rank acquires a lock that another could hold. Once memory is mapped, there are no system
//! calls except the kernel's copies.

use unisono_collectives::Rank;

use super::half::{Half as _, Polled};
use super::waiting::Poll;
use super::{Deadlines, Failure, Header, Incoming, Outgoing, Waiting};
use crate::error::Error;
use crate::memory::{Registry, Scratch};
use crate::status::StatusBoard;

pub(super) mod board;
mod channel;
mod messages;
mod open;
pub(super) mod reach;
mod receiving;
mod sending;
mod single_pass;
#[cfg(test)]
mod tests;

pub(crate) use board::STAGING_BYTES;
use board::{Board, PIECES};
pub(crate) use channel::SHORT;
use channel::{SLOTS, Stamp};
pub(crate) use open::{Open, Shares};
use reach::{Reach, Start};
pub(super) use receiving::Receiving;
pub(super) use sending::Sending;

/// The number of polls of a rank for a short message before it waits as for any other message: a few times the duration of one exchange.
const POLLS: u32 = 1000;

/// The transport of one rank of a world, or of a node, whose ranks share memory. Internally, ranks are numbered by their
/// position among those.
#[derive(Debug)]
pub(crate) struct Shared {
    position: usize,
    /// The rank in the world of each position.
    pub(super) members: Vec<Rank>,
    /// The position of each rank of the world, if it has one.
    positions: Vec<Option<usize>>,
    board: Board,
    pub(super) status: StatusBoard,
    pub(super) reach: Reach,
    /// The allocator of this rank's registered memory.
    pub(super) registry: Registry,
    /// The number of polls of this rank before it yields; 0 until its fabric sets it.
    pub(super) spins: u32,
    outbox: Outbox,
    /// The number of messages received from each position.
    received: Vec<u64>,
    passes: u64,
    /// The starts of this rank's ranges in the buffers of other positions, in the current pass.
    starts: Vec<Start>,
    /// Registered memory that is lent in place of a buffer that is not registered.
    lent_copy: Scratch,
    /// Data copied by the kernel for this rank to work on.
    copy: Scratch,
}

// SAFETY: `starts` is used only inside of a call, on the thread that makes it.
unsafe impl Send for Shared {}

// SAFETY: as for `Send`; nothing is changed through a shared reference.
unsafe impl Sync for Shared {}

/// The state of the messages that a rank has sent.
#[derive(Debug, Default)]
struct Outbox {
    /// The number of messages sent to each position.
    sent: Vec<u64>,
    /// The number of them that the receiver had received when this rank last checked.
    released: Vec<u64>,
    /// The message that last used each piece of staging memory: its receiver and number.
    staged: [Option<(usize, u64)>; PIECES],
    /// The piece after the one that was used last.
    next_piece: usize,
}

impl Outbox {
    /// Returns the stamp of the next message to a position, if a slot is free.
    #[inline]
    fn next(&mut self, board: &Board, (from, to): (usize, usize)) -> Option<Stamp> {
        let number = self.sent[to] + 1;
        if number > self.released[to] + SLOTS {
            self.released[to] = board.channel(from, to).released();
        }
        // The count of received messages stays in this rank's cache, as long as the other rank need not read it.
        let stamp = || Stamp { number, acknowledged: board.channel(to, from).released() };
        (number <= self.released[to] + SLOTS).then(stamp)
    }

    /// Sends a short message, if a slot is free.
    #[inline]
    fn send_short(
        &mut self,
        board: &Board,
        (from, to): (usize, usize),
        header: &Header,
        payload: &[u8],
    ) -> bool {
        let Some(stamp) = self.next(board, (from, to)) else { return false };
        board.channel(from, to).send_short(stamp, header, payload);
        self.sent[to] = stamp.number;
        true
    }

    /// Returns a piece of staging memory whose message has been received.
    fn free_piece(&self, board: &Board, from: usize) -> Option<usize> {
        let is_free = |&piece: &usize| {
            self.staged[piece].is_none_or(|(to, number)| board.channel(from, to).released() >= number)
        };
        (self.next_piece..self.next_piece + PIECES).map(|piece| piece % PIECES).find(is_free)
    }

    /// Returns whether a message to a position was the last to use a piece of staging memory.
    fn has_staged(&self, to: usize) -> bool {
        self.staged.iter().flatten().any(|&(last, _)| last == to)
    }

    /// Records the message that uses a piece.
    fn stage(&mut self, piece: usize, to: usize, number: u64) {
        self.staged[piece] = Some((to, number));
        self.next_piece = (piece + 1) % PIECES;
    }
}

impl Shared {
    pub(super) fn new(
        position: usize,
        members: Vec<Rank>,
        (board, status): (Board, StatusBoard),
        reach: Reach,
    ) -> Self {
        let ranks = members.len();
        let mut positions = vec![None; members.iter().max().map_or(0, |last| last + 1)];
        members.iter().enumerate().for_each(|(position, &rank)| positions[rank] = Some(position));
        let outbox = Outbox { sent: vec![0; ranks], released: vec![0; ranks], ..Outbox::default() };
        // A pass sets the starts of the other ranks. The start of this rank is never read, and must not seem to be elsewhere.
        let starts = vec![Start::Mapped { start: std::ptr::null_mut(), is_copy: false }; ranks];
        let received = vec![0; ranks];
        let registry = if reach.0.is_some() { Registry::Processes } else { Registry::Threads };
        Self {
            position,
            members,
            positions,
            board,
            status,
            reach,
            registry,
            spins: 0,
            outbox,
            received,
            passes: 0,
            starts,
            lent_copy: Scratch::new(registry),
            copy: Scratch::default(),
        }
    }

    /// Returns this rank's end for point-to-point messages, over separate channels.
    pub(super) fn for_messages(&self) -> Self {
        Self::new(
            self.position,
            self.members.clone(),
            (self.board.for_messages(), self.status.clone()),
            self.reach.again(),
        )
    }

    /// Returns the transports of all ranks of a world in one process, given the status board of each rank.
    pub(super) fn of_process(statuses: Vec<StatusBoard>) -> crate::error::Result<Vec<Self>> {
        let ranks = statuses.len();
        let size_bytes = Board::size_bytes(ranks);
        let pages = crate::memory::Pages::untouched(size_bytes)
            .map_err(|error| Error::Memory { size_bytes, cause: error.into() })?;
        let board = Board::new(pages, ranks);
        let end = |(position, status)| {
            let members = (0..ranks).collect();
            Self::new(position, members, (board.clone(), status), Reach(None))
        };
        Ok(statuses.into_iter().enumerate().map(end).collect())
    }

    /// Returns the name in tables.
    pub(super) fn name(&self) -> &'static str {
        if self.reach.0.is_some() { "shm" } else { "threads" }
    }

    /// Returns whether a rank of the world shares this memory.
    pub(super) fn has(&self, rank: Rank) -> bool {
        self.positions.get(rank).is_some_and(Option::is_some)
    }

    fn position_of(&self, rank: Rank) -> usize {
        self.positions[rank].expect("a rank of the same node")
    }

    /// Returns the header of the next message from a rank, if it has arrived.
    pub(super) fn ahead(&self, from: Rank) -> Option<&Header> {
        self.board.channel(self.position_of(from), self.position).ahead()
    }

    /// Sends and receives at most one message each. When it returns, no other rank reads the sent bytes.
    #[inline]
    pub(super) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        mut incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        // Short messages lend and divide no memory: this rank posts one message, and polls for the other.
        let outgoing = outgoing.filter(|outgoing| !self.try_send_short(header, outgoing));
        if outgoing.is_none() && self.try_receive_short(header, &mut incoming)? {
            return Ok(());
        }
        self.exchange_any(header, outgoing, incoming, deadlines)
    }

    /// Sends a message if it is short and a slot is free. Returns whether it is sent.
    #[inline]
    fn try_send_short(&mut self, header: &Header, outgoing: &Outgoing<'_>) -> bool {
        let (bytes, to) = (outgoing.bytes, self.position_of(outgoing.to));
        let Self { position, board, outbox, .. } = self;
        // The first message touches its channel's pages.
        if bytes.len() > SHORT || outbox.sent[to] == 0 {
            return false;
        }
        outbox.send_short(board, (*position, to), &header.of_size(bytes.len()), bytes)
    }

    /// Receives the expected message, if it is short and arrives soon. Returns whether nothing remains to be received.
    #[inline]
    fn try_receive_short(
        &mut self,
        header: &Header,
        incoming: &mut Option<Incoming<'_>>,
    ) -> Result<bool, Failure> {
        let Some(Incoming { from: other, target }) = incoming else { return Ok(true) };
        let (size_bytes, from) = (target.size_bytes(), self.position_of(*other));
        let Self { position, board, status, outbox, received, spins, .. } = self;
        let number = received[from] + 1;
        if size_bytes > SHORT || number == 1 {
            return Ok(false);
        }
        let channel = board.channel(from, *position);
        // A rank without its own core polls once.
        for _ in 0..(*spins).clamp(1, POLLS) {
            let Some(message) = channel.arrived(number) else { continue };
            channel.check(number, message, &header.of_size(size_bytes), *other, status)?;
            target.accept(0, channel.payload(number, message, size_bytes));
            outbox.released[from] = outbox.released[from].max(message.acknowledged);
            channel.release(number);
            received[from] = number;
            return Ok(true);
        }
        Ok(false)
    }

    /// Like [`exchange`](Self::exchange), for messages of any size and waits of any length.
    #[inline(never)]
    fn exchange_any(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let spins = self.spins;
        let (mut exchange, checks) = self.halves(header, outgoing, incoming);
        exchange.1.progress()?;
        let poll = || {
            let moved = exchange.progress()? != Polled::Idle;
            Ok(Poll::of(exchange.awaits(), moved))
        };
        let waiting = Waiting::new(spins, deadlines, checks.own.status);
        waiting.until(poll, |other, waiting| checks.poll(other, waiting))
    }

    /// Returns both halves of an exchange, and the checks during a wait. The sending half makes progress
    /// first.
    #[inline]
    pub(super) fn halves<'a>(
        &'a mut self,
        header: &'a Header,
        outgoing: Option<Outgoing<'a>>,
        incoming: Option<Incoming<'a>>,
    ) -> ((Option<Receiving<'a>>, Option<Sending<'a>>), Checks<'a>) {
        let to = outgoing.as_ref().map(|outgoing| self.position_of(outgoing.to));
        let from = incoming.as_ref().map(|incoming| self.position_of(incoming.from));
        let Self { position, members, board, status, reach, registry, outbox, received, passes, .. } = self;
        let own = Own { position: *position, members, board, status, registry: *registry };
        // The count before this exchange: the number of the expected message may change during it.
        let checks = Checks { own, header, passes: *passes };
        let sending = outgoing.zip(to).map(|(outgoing, to)| {
            Sending::new(own, to, header, outgoing, outbox, reach.copies_by_kernel(header))
        });
        let receiving = incoming
            .zip(from)
            .map(|(incoming, from)| Receiving::new(own, from, header, incoming, &mut received[from], reach));
        ((receiving, sending), checks)
    }
}

/// The parts of a rank's transport that all of its messages and passes use.
#[derive(Debug, Clone, Copy)]
struct Own<'a> {
    position: usize,
    members: &'a [Rank],
    board: &'a Board,
    status: &'a StatusBoard,
    registry: Registry,
}

/// The periodic checks of a waiting rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checks<'a> {
    own: Own<'a>,
    header: &'a Header,
    passes: u64,
}

impl Checks<'_> {
    /// Returns whether a rank sends its messages through this memory.
    pub(super) fn has(&self, rank: Rank) -> bool {
        self.own.members.contains(&rank)
    }

    #[cold]
    pub(super) fn poll(&self, other: Rank, waiting: &Waiting<'_>) -> Result<(), Failure> {
        let status = self.own.status;
        if waiting.is_long() {
            self.check_unexpected(waiting.polls as usize)?;
            self.header.check_called(other, status)?;
        }
        Failure::left(other, status).map_or(Ok(()), Err)
    }

    /// Checks messages and opened buffers of ranks that this one does not wait for: at each poll of some, since a world may have a thousand.
    fn check_unexpected(&self, polls: usize) -> Result<(), Failure> {
        const AT_ONCE: usize = 16;
        let Own { position, members, board, status, .. } = self.own;
        let others = (0..members.len().min(AT_ONCE)).map(|next| (polls * AT_ONCE + next) % members.len());
        others.filter(|&other| other != position).try_for_each(|other| {
            let sent = board.channel(other, position).ahead();
            let opened = board.condition(other).opened.read(self.passes + 1);
            let mut posted = sent.into_iter().chain(opened.map(|content| &content.header));
            posted.try_for_each(|header| self.header.check_unexpected(header, members[other], status))
        })
    }
}
