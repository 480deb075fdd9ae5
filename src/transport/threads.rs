//! Ranks that are threads of one process: a message is read where it lies.
//!
//! For every ordered pair of ranks there is a mailbox that holds at most one message: a header, and where
//! the bytes are. The receiver reads them in place, and the sender waits until it has; so nothing is
//! copied, and nothing is allocated.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use unisono_collectives::Rank;

use super::{Failure, Header, Incoming, Outgoing, Waiting};
use crate::error::Error;

mod mailbox;

use mailbox::{Mailbox, Posted};

/// What the ranks of a world share.
#[derive(Debug)]
struct World {
    ranks: usize,
    /// The mailbox from rank `f` to rank `t` is number `f * ranks + t`.
    mailboxes: Vec<Mailbox>,
    left: Vec<AtomicBool>,
    /// Which rank failed first, and what it said.
    failed: OnceLock<(Rank, String)>,
}

impl World {
    fn mailbox(&self, from: Rank, to: Rank) -> &Mailbox {
        &self.mailboxes[from * self.ranks + to]
    }
}

/// One rank's end of a world of threads.
#[derive(Debug)]
pub(crate) struct Threads {
    rank: Rank,
    world: Arc<World>,
    spins: u32,
}

impl Threads {
    /// All ends of a new world.
    ///
    /// # Panics
    /// If the world is to have no rank.
    pub(crate) fn world(ranks: usize) -> Vec<Self> {
        assert!(ranks > 0, "a world has at least one rank");
        let world = Arc::new(World {
            ranks,
            mailboxes: (0..ranks * ranks).map(|_| Mailbox::default()).collect(),
            left: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            failed: OnceLock::new(),
        });
        let spins = super::spins(ranks, super::usable_cores());
        (0..ranks).map(|rank| Self { rank, world: Arc::clone(&world), spins }).collect()
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn ranks(&self) -> usize {
        self.world.ranks
    }

    /// Lets every rank of the world know; the first cause stays.
    pub(crate) fn fail(&self, cause: &str) {
        let _ = self.world.failed.set((self.rank, cause.to_owned()));
    }

    pub(crate) fn exchange(
        &self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        mut incoming: Option<Incoming<'_>>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        let mut waiting = Waiting::new(self.spins, timeout);
        let mut posted = outgoing.map(|Outgoing { to, bytes }| {
            let mailbox = self.world.mailbox(self.rank, to);
            (to, mailbox.post(header.of_size(bytes.len()), bytes))
        });
        loop {
            // Looked at first: whoever has left may have read and sent just before.
            let gone = self
                .gone(posted.as_ref().map(|(to, _)| *to), incoming.as_ref().map(|incoming| incoming.from));
            if let Some(awaited) = &mut incoming
                && self.receive(header, awaited)?
            {
                incoming = None;
            }
            posted = posted.filter(|(_, message)| !message.is_taken());
            let Some(other) = awaited_rank(posted.as_ref(), incoming.as_ref()) else {
                return Ok(());
            };
            self.check_failed()?;
            if let Some(other) = gone.filter(|&gone| gone == other) {
                return Err(Failure::Left { other });
            }
            if waiting.is_patient() {
                self.overhear(header)?;
            }
            waiting.pause().map_err(|waited| Failure::Timeout { other, waited })?;
        }
    }

    /// Takes in the awaited message, if it is there.
    fn receive(&self, header: &Header, incoming: &mut Incoming<'_>) -> Result<bool, Failure> {
        let Incoming { from, target } = incoming;
        let expected = header.of_size(target.size_bytes());
        let taken = self.world.mailbox(*from, self.rank).take(|theirs, bytes| {
            expected.check(theirs, *from)?;
            target.accept(0, bytes);
            Ok(())
        });
        taken.transpose().map(|taken| taken.is_some())
    }

    /// One of these ranks that has left the world, if any.
    fn gone(&self, to: Option<Rank>, from: Option<Rank>) -> Option<Rank> {
        from.into_iter().chain(to).find(|&other| self.world.left[other].load(Ordering::Acquire))
    }

    fn check_failed(&self) -> Result<(), Failure> {
        match self.world.failed.get() {
            None => Ok(()),
            Some((by, cause)) => {
                Err(Failure::Error(Error::Aborted { rank: self.rank, by: *by, cause: cause.clone() }))
            }
        }
    }

    /// Looks at what lies in the mailboxes of ranks that this one does not wait for.
    fn overhear(&self, header: &Header) -> Result<(), Failure> {
        (0..self.world.ranks).try_for_each(|other| match self.world.mailbox(other, self.rank).peek() {
            Some(theirs) => header.check_overheard(&theirs, other),
            None => Ok(()),
        })
    }
}

/// The rank that a wait is for: first of all the one that is to send.
fn awaited_rank(posted: Option<&(Rank, Posted<'_>)>, incoming: Option<&Incoming<'_>>) -> Option<Rank> {
    incoming.map(|incoming| incoming.from).or(posted.map(|(to, _)| *to))
}

impl Drop for Threads {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail("it panicked");
        }
        self.world.left[self.rank].store(true, Ordering::Release);
    }
}
