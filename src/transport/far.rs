//! Exchanges over any [`Link`] with ranks that share no memory with this one. They block, or are posted and completed later.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::half::{Half as _, Polled};
use super::link::Link;
use super::shared::Shared;
use super::waiting::{IN_FLIGHT_GRACE, Poll};
use super::{Deadlines, Failure, Header, Incoming, Outgoing, Target, Waiting, clock};
use crate::error::Error;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::while_waiting;

mod halves;
mod posted;
#[cfg(test)]
mod tests;

use halves::{Receiving, Sending};
use posted::Posts;

/// The longest sleep of a waiting rank. Messages end the sleep, but a failure on the status board does not.
const NAP: Duration = Duration::from_millis(1);
/// The longest sleep of a rank that also waits for a rank of its node, or runs a function of the program. Neither ends the sleep.
const SHORT_NAP: Duration = Duration::from_micros(50);

/// The messages of collectives with other nodes.
#[derive(Debug)]
pub(super) struct Far {
    link: RefCell<Box<dyn Link>>,
    /// The ranks that share no memory with this one.
    ranks: Vec<Rank>,
    status: StatusBoard,
    posts: RefCell<Posts>,
    /// The buffer for an incoming piece that is combined with held elements.
    piece: RefCell<Scratch>,
    pub(super) spins: u32,
    /// Whether an exchange has failed while the link held memory of the program.
    is_stranded: Cell<bool>,
}

impl Far {
    pub(super) fn new(link: Box<dyn Link>, ranks: Vec<Rank>, status: StatusBoard, spins: u32) -> Self {
        let (posts, piece, is_stranded) = Default::default();
        Self { link: RefCell::new(link), ranks, status, posts, piece, spins, is_stranded }
    }

    /// Returns whether no exchange is posted.
    pub(super) fn is_idle(&self) -> bool {
        self.posts.borrow().are_none()
    }

    /// Returns whether the link still holds memory of the program, after a failure.
    pub(super) fn is_stranded(&self) -> bool {
        self.is_stranded.get()
    }

    /// As [`Link::end_job`].
    pub(super) fn end_job(&self) -> ! {
        self.link.borrow().end_job(&self.status)
    }

    /// Sends and receives at most one message each, over the link or through the memory of this node. When it returns, the sent bytes
    /// may change.
    #[inline]
    pub(super) fn exchange(
        &mut self,
        node: Option<&mut Shared>,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let to = outgoing.as_ref().map(|outgoing| outgoing.to);
        let from = incoming.as_ref().map(|incoming| incoming.from);
        match node {
            Some(node) if self.is_idle() && to.into_iter().chain(from).all(|rank| node.has(rank)) => {
                node.exchange(header, outgoing, incoming, deadlines)
            }
            node => {
                let is_placed = matches!(incoming, Some(Incoming { target: Target::Place(_), .. }));
                let lent = Lent { far: self, ranks: [to, from.filter(|_| is_placed)] };
                self.exchange_any(node, header, outgoing, incoming, deadlines)?;
                std::mem::forget(lent);
                Ok(())
            }
        }
    }

    /// Like [`exchange`](Self::exchange), but also while exchanges are posted, and with one rank of this node and one of another.
    fn exchange_any(
        &self,
        node: Option<&mut Shared>,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let is_near = |rank| node.as_ref().is_some_and(|node| node.has(rank));
        let to_near = outgoing.as_ref().is_some_and(|outgoing| is_near(outgoing.to));
        let from_near = incoming.as_ref().is_some_and(|incoming| is_near(incoming.from));
        let (near_out, far_out) = if to_near { (outgoing, None) } else { (None, outgoing) };
        let (near_in, far_in) = if from_near { (incoming, None) } else { (None, incoming) };
        let near = node.filter(|_| to_near || from_near).map(|node| node.halves(header, near_out, near_in));
        let (near, checks) = near.unzip();
        let (near_receive, near_send) = near.unwrap_or_default();
        let far_receive = far_in.map(|incoming| Receiving::new(self, header, incoming));
        let far_send = far_out.map(|outgoing| Sending::new(self, header, outgoing));
        let mut exchange = ((near_receive, far_receive), (near_send, far_send));
        exchange.1.progress()?;
        let nap = || self.nap(checks.is_some());
        let waiting = self.napping(Waiting::new(self.spins, deadlines, &self.status), &nap);
        let mut peer_check = PeerCheck { far: self, header, gone_since: None };
        let poll = || {
            let received = exchange.0.progress()? != Polled::Idle || self.progress_posted()?;
            let sent = exchange.1.progress()? != Polled::Idle;
            Ok(Poll::of(exchange.awaits(), received || sent))
        };
        waiting.until(poll, |other, waiting| {
            peer_check.poll(other, waiting)?;
            // A rank of this node leaves only after its messages have arrived.
            let near = checks.filter(|checks| checks.has(other));
            near.map_or(Ok(()), |checks| checks.poll(other, waiting))
        })
    }

    /// As [`Fabric::post`](super::Fabric::post).
    pub(super) fn post(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<(Rank, usize)>,
    ) -> Result<(), Failure> {
        self.posts.get_mut().add(header, outgoing, incoming).map_err(Failure::Error)?;
        self.progress_posted().map(|_| ())
    }

    /// As [`Fabric::complete`](super::Fabric::complete).
    pub(super) fn complete(
        &mut self,
        header: &Header,
        target: Option<&mut Target<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let nap = || self.nap(false);
        let waiting = self.napping(Waiting::new(self.spins, deadlines, &self.status).for_long(), &nap);
        let mut peer_check = PeerCheck { far: self, header, gone_since: None };
        let poll = || {
            let moved = self.progress_posted()?;
            Ok(Poll::of(self.posts.borrow().awaits(), moved))
        };
        waiting.until(poll, |other, waiting| peer_check.poll(other, waiting))?;
        self.posts.get_mut().end(target);
        Ok(())
    }

    /// Makes progress on posted exchanges. Returns whether there was any.
    fn progress_posted(&self) -> Result<bool, Failure> {
        let mut posts = self.posts.borrow_mut();
        if posts.are_none() { Ok(false) } else { posts.progress(&mut **self.link.borrow_mut(), &self.status) }
    }

    /// Makes a wait sleep, if messages end the sleep.
    fn napping<'a>(&self, waiting: Waiting<'a>, nap: &'a dyn Fn()) -> Waiting<'a> {
        if self.link.borrow().wakes_up() { waiting.napping(nap) } else { waiting }
    }

    fn nap(&self, is_short: bool) {
        let is_short = is_short || while_waiting::is_set();
        self.link.borrow().nap(if is_short { SHORT_NAP } else { NAP });
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let link = self.link.get_mut();
        if self.ranks.iter().any(|&other| holds_memory(&mut **link, other)) {
            std::mem::forget((self.posts.take(), self.piece.take()));
        }
    }
}

/// Returns the failure of a rank whose connection is lost.
pub(super) fn lost(link: &dyn Link, other: Rank, status: &StatusBoard) -> Option<Failure> {
    let cause = link.lost(other)?;
    let cause = format!("the connection with rank {other} is lost: {cause}");
    Some(Failure::Error(Error::Aborted { rank: status.rank(), by: other, cause }))
}

/// Returns whether the link may still access memory of failed messages to and from a rank, after it has withdrawn all messages that it can.
pub(super) fn holds_memory(link: &mut dyn Link, other: Rank) -> bool {
    if link.holds_memory(other) {
        link.withdraw(other);
    }
    link.holds_memory(other)
}

/// Memory that is lent to the link for an exchange. If the exchange does not complete, the link may still access it.
struct Lent<'a> {
    far: &'a Far,
    ranks: [Option<Rank>; 2],
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut link = self.far.link.borrow_mut();
        // Not `any`, since the memory of both messages returns to the program.
        let holds =
            self.ranks.into_iter().flatten().filter(|&other| holds_memory(&mut **link, other)).count();
        drop(link);
        if holds == 0 {
            return;
        }
        self.far.is_stranded.set(true);
        // Unwinding frees memory that the link still accesses.
        if std::thread::panicking() {
            self.far.end_job();
        }
    }
}

/// The periodic check of the awaited rank.
struct PeerCheck<'a> {
    far: &'a Far,
    header: &'a Header,
    /// When it was first detected that the awaited rank will not send.
    gone_since: Option<Instant>,
}

impl PeerCheck<'_> {
    fn poll(&mut self, other: Rank, waiting: &Waiting<'_>) -> Result<(), Failure> {
        let Far { link, status, .. } = self.far;
        if waiting.is_long() {
            self.check_unexpected()?;
            self.header.check_called(other, status)?;
        }
        let gone = Failure::left(other, status).or_else(|| lost(&**link.borrow(), other, status));
        let Some(failure) = gone else { return Ok(()) };
        // The guard may determine the cause, and reports it in the meantime.
        let gone_since = *self.gone_since.get_or_insert_with(clock::now);
        let silence = (clock::now() - gone_since).min(waiting.silence());
        if silence > IN_FLIGHT_GRACE { Err(failure) } else { Ok(()) }
    }

    /// Checks the next messages of ranks that this one does not wait for. Otherwise two ranks that make different calls would wait for each
    /// other, or for a third, until the deadline.
    fn check_unexpected(&self) -> Result<(), Failure> {
        let mut link = self.far.link.borrow_mut();
        self.far.ranks.iter().try_for_each(|&from| match link.ahead(from)? {
            Some(theirs) => self.header.check_unexpected(&theirs, from, &self.far.status),
            None => Ok(()),
        })
    }
}
