//! Ranks that share memory: threads of a process, or processes of a node.
//!
//! Everything goes over a [`Board`] that all of them have. A short message is copied into a slot of a channel, and
//! the sender goes on. A longer one is read where it lies, if the receiver can reach it, and the sender
//! waits until it has been; what cannot be reached is copied piece by piece through staging memory, or read
//! by the kernel. No lock is taken that another rank could hold, and once memory is known no system call is made
//! (but for the kernel's copies).

use std::sync::Arc;

use unisono_collectives::Rank;

use super::half::{Half as _, Sight, complete};
use super::{Deadlines, Failure, Header, Headers, Incoming, Outgoing, Waiting};
use crate::error::Error;
use crate::memory::{Registry, Scratch};
use crate::status::{FailureReport, StatusBoard, panicked};

pub(super) mod board;
mod channel;
mod open;
pub(super) mod reach;
mod receiving;
mod sending;
mod short;
mod single_pass;
#[cfg(test)]
mod tests;

use board::{Board, PIECES};
pub(crate) use channel::SHORT;
use channel::{SLOTS, Stamp};
pub(crate) use open::{Open, Shares};
use reach::{Reach, Start};
pub(super) use receiving::Receiving;
pub(super) use sending::Sending;

/// One rank's end of a world, or of a node, whose ranks share memory. Inside, ranks are numbered by their position
/// among those.
#[derive(Debug)]
pub(crate) struct Shared {
    position: usize,
    /// The rank in the world of each position.
    members: Vec<Rank>,
    /// The position of each rank of the world, where it has one.
    positions: Vec<Option<usize>>,
    board: Board,
    status: StatusBoard,
    report: Option<Arc<dyn FailureReport>>,
    reach: Reach,
    registry: Arc<Registry>,
    spins: u32,
    /// How many cores these ranks may use together.
    cores: usize,
    outbox: Outbox,
    /// How many messages were received from each position.
    received: Vec<u64>,
    /// How many buffers were opened to all.
    passes: u64,
    /// Where, in the present pass, each position has what is this rank's to work on.
    starts: Vec<Start>,
    /// What is lent in the place of a buffer that is not registered.
    dealt: Scratch,
    /// What the kernel has copied here for this rank to work with.
    copy: Scratch,
}

// SAFETY: `starts` is used only inside of a call, on the thread that makes it.
unsafe impl Send for Shared {}

// SAFETY: as for `Send`; nothing is changed through a shared reference.
unsafe impl Sync for Shared {}

/// What a rank must know of the messages that it has sent.
#[derive(Debug)]
struct Outbox {
    /// How many to each position.
    sent: Vec<u64>,
    /// How many of them the receiver had taken when this rank last looked.
    taken: Vec<u64>,
    /// The message that each piece of staging memory was last used for: to whom, and its number.
    staged: [Option<(usize, u64)>; PIECES],
    /// Which piece is used next.
    next_piece: usize,
}

impl Outbox {
    /// The stamp of the next message to a position, if there is a free slot for it.
    #[inline]
    fn next(&mut self, board: &Board, (from, to): (usize, usize)) -> Option<Stamp> {
        let number = self.sent[to] + 1;
        if number > self.taken[to] + SLOTS {
            self.taken[to] = board.channel(from, to).taken();
        }
        // What this rank has taken is in its core's cache, as long as the other rank need not look.
        let stamp = || Stamp { number, acknowledged: board.channel(to, from).taken() };
        (number <= self.taken[to] + SLOTS).then(stamp)
    }

    /// Sends a short message, if there is a free slot for it.
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

    /// A position has said, beside a message of its own, how many of this rank's it has taken.
    #[inline]
    fn acknowledged(&mut self, by: usize, taken: u64) {
        self.taken[by] = self.taken[by].max(taken);
    }
}

impl Shared {
    pub(super) fn new(
        position: usize,
        members: Vec<Rank>,
        (board, status): (Board, StatusBoard),
        reach: Reach,
        registry: Arc<Registry>,
        (spins, cores): (u32, usize),
    ) -> Self {
        let ranks = members.len();
        assert_eq!(board.ranks(), ranks, "a board for these ranks");
        let mut positions = vec![None; members.iter().max().map_or(0, |last| last + 1)];
        members.iter().enumerate().for_each(|(position, &rank)| positions[rank] = Some(position));
        let outbox =
            Outbox { sent: vec![0; ranks], taken: vec![0; ranks], staged: [None; PIECES], next_piece: 0 };
        let (received, starts) = (vec![0; ranks], vec![Start::Elsewhere(0); ranks]);
        let dealt = Scratch::new(Arc::clone(&registry));
        Self {
            position,
            members,
            positions,
            board,
            status,
            report: None,
            reach,
            registry,
            spins,
            cores,
            outbox,
            received,
            passes: 0,
            starts,
            dealt,
            copy: Scratch::default(),
        }
    }

    /// All ends of a new world of threads.
    pub(super) fn world_of_threads(ranks: usize, waits: (u32, usize)) -> crate::error::Result<Vec<Self>> {
        Self::of_process(StatusBoard::of_threads(ranks)?, waits)
    }

    /// The ends of the ranks of a process that is a world of its own, by the status boards of each.
    pub(super) fn of_process(
        statuses: Vec<StatusBoard>,
        waits: (u32, usize),
    ) -> crate::error::Result<Vec<Self>> {
        let ranks = statuses.len();
        let size_bytes = Board::size_bytes(ranks);
        let pages = crate::memory::Pages::untouched(size_bytes)
            .map_err(|error| Error::Memory { size_bytes, cause: error.into() })?;
        let board = Board::new(pages, ranks, 0);
        let end = |(position, status)| {
            let (members, registry) = ((0..ranks).collect(), Registry::of_threads());
            Self::new(position, members, (board.clone(), status), Reach::Threads, registry, waits)
        };
        Ok(statuses.into_iter().enumerate().map(end).collect())
    }

    /// This rank's number in the world.
    pub(super) fn rank(&self) -> Rank {
        self.members[self.position]
    }

    /// The ranks that share this memory.
    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// What all ranks of the node know of each other.
    pub(super) fn status(&self) -> &StatusBoard {
        &self.status
    }

    /// Whether the kernel copies from memory of the others that is not registered; `None` where it need not.
    pub(super) fn kernel_copies(&self) -> Option<bool> {
        match &self.reach {
            Reach::Threads => None,
            Reach::Processes(_) => Some(self.reach.can_ask_kernel()),
        }
    }

    /// How messages travel, in every table.
    pub(super) fn name(&self) -> &'static str {
        match self.reach {
            Reach::Threads => "threads",
            Reach::Processes(_) => "shm",
        }
    }

    /// How many cores these ranks may use together.
    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// How often this rank looks before it gives way.
    pub(super) fn set_spins(&mut self, spins: u32) {
        self.spins = spins;
    }

    /// The same, as it is now.
    pub(super) fn spins(&self) -> u32 {
        self.spins
    }

    /// The registered memory of this rank.
    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether a rank of the world shares this memory.
    pub(super) fn has(&self, rank: Rank) -> bool {
        self.positions.get(rank).is_some_and(Option::is_some)
    }

    fn position_of(&self, rank: Rank) -> usize {
        self.positions[rank].expect("a rank of the same node")
    }

    /// What the next message from a rank says, if it is here.
    pub(super) fn ahead(&self, from: Rank) -> Option<&Header> {
        self.board.channel(self.position_of(from), self.position).ahead()
    }

    /// Sends and receives at most one message each. When it returns, no other rank reads the bytes sent.
    #[inline]
    pub(super) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        mut incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let outgoing = outgoing.filter(|outgoing| !self.sends_short(header, outgoing));
        if outgoing.is_none() && self.takes_short(header, &mut incoming)? {
            return Ok(());
        }
        self.exchange_any(header.into(), outgoing, incoming, deadlines)
    }

    /// The same for messages of any size, and waits of any length.
    #[inline(never)]
    pub(super) fn exchange_any(
        &mut self,
        headers: Headers<'_>,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let spins = self.spins;
        let (mut sending, mut receiving, around) = self.halves(headers, outgoing, incoming);
        let waiting = Waiting::new(spins, deadlines, around.status);
        sending.progress()?;
        complete(&mut sending, &mut receiving, waiting, |other, waiting| around.look(other, waiting))
    }

    /// Both halves of an exchange, and what to look at during a wait. The first progress of the sending half is to
    /// be made first.
    #[inline]
    pub(super) fn halves<'a>(
        &'a mut self,
        headers: impl Into<Headers<'a>>,
        outgoing: Option<Outgoing<'a>>,
        incoming: Option<Incoming<'a>>,
    ) -> (Option<Sending<'a>>, Option<Receiving<'a>>, Around<'a>) {
        let Headers { sent, awaited: header } = headers.into();
        let to = outgoing.as_ref().map(|outgoing| self.position_of(outgoing.to));
        let from = incoming.as_ref().map(|incoming| self.position_of(incoming.from));
        let Self { position, members, board, status, reach, registry, outbox, received, passes, .. } = self;
        let (board, status) = (&*board, &*status);
        let sending = outgoing.zip(to).map(|(outgoing, to)| {
            let can_ask_kernel = reach.can_ask_kernel();
            Sending::new((board, status), (*position, to), sent, outgoing, outbox, registry, can_ask_kernel)
        });
        // What was received before this exchange: the number of the message that is awaited may change in it.
        let around = Around { position: *position, members, board, status, header, passes: *passes };
        let receiving = incoming.zip(from).map(|(incoming, from)| {
            Receiving::new((board, status), (from, *position), header, incoming, &mut received[from], reach)
        });
        (sending, receiving, around)
    }

    /// Lets every rank that shares this memory know that this one cannot go on.
    pub(super) fn fail(&self, cause: &str) {
        match &self.report {
            Some(report) => report.fail(cause),
            None => drop(self.status.fail(self.rank(), cause)),
        }
    }

    /// From now on this says why this rank ends, if it is a thread.
    pub(super) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        self.report = Some(report);
    }
}

/// What a rank looks at while it waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Around<'a> {
    position: usize,
    members: &'a [Rank],
    board: &'a Board,
    status: &'a StatusBoard,
    header: &'a Header,
    passes: u64,
}

impl Around<'_> {
    /// Whether a rank sends its messages through this memory.
    #[cfg(feature = "mpi")]
    pub(super) fn has(&self, rank: Rank) -> bool {
        self.members.contains(&rank)
    }

    #[cold]
    pub(super) fn look(&self, other: Rank, waiting: &Waiting<'_>) -> Result<Sight, Failure> {
        if waiting.is_long() {
            self.overhear()?;
            self.header.check_called(other, self.status)?;
        }
        let hopeless = self.header.hopeless(other, self.status, waiting.is_long());
        Ok(hopeless.map_or(Sight::Nothing, Sight::Hopeless))
    }

    /// Looks at what other ranks have sent or opened that this one does not wait for.
    fn overhear(&self) -> Result<(), Failure> {
        (0..self.members.len()).filter(|&other| other != self.position).try_for_each(|other| {
            let sent = self.board.channel(other, self.position).ahead();
            let opened = self.board.condition(other).opened.read(self.passes + 1);
            let mut posted = sent.into_iter().chain(opened.map(|content| &content.header));
            posted
                .try_for_each(|header| self.header.check_overheard(header, self.members[other], self.status))
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(&panicked());
        }
        self.status.leave(self.rank());
    }
}
