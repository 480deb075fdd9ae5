//! Messages over TCP between ranks that share no memory: one connection for each two of them.
//!
//! A message is a header, followed by its payload. The kernel takes both from where they lie, and delivers to where they are
//! stored; only what is combined with held elements goes through a block that stays in the cache.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use unisono_collectives::Rank;

use super::half::{Beside, Half, complete};
use super::shared::Shared;
use super::waiting::{STRAGGLING, Sight};
use super::{Deadlines, Failure, Header, Incoming, Nap, Outgoing, Target, Ticket, Waiting};
use crate::error::Error;
use crate::memory::Scratch;
use crate::status::StatusBoard;

mod connect;
mod either;
mod messages;
mod posted;
mod receiving;
mod sending;
mod stream;
#[cfg(test)]
mod tests;

pub(super) use connect::connect;
use either::Either;
pub(super) use messages::Line;
use posted::{Flush, Posts};
use receiving::Receiving;
use sending::Sending;
use stream::Stream;

/// The most bytes that one call of the kernel moves, so that both directions take turns and the block stays in the cache.
const PIECE: usize = 256 << 10;
/// How long a rank that waits sleeps at most: messages wake it up, but not a failure that the status board shows.
const NAP: Duration = Duration::from_millis(1);
/// The same, if it also waits for a rank of its node, which does not wake it up.
const SHORT_NAP: Duration = Duration::from_micros(50);

/// The connections of a rank.
#[derive(Debug)]
pub(super) struct Tcp {
    /// By rank of the world; `None` for those that share memory with this one.
    streams: Vec<Option<Stream>>,
    /// What is received to be combined.
    block: RefCell<Scratch>,
    posts: RefCell<Posts>,
    spins: Cell<u32>,
    /// Until whoever watches over this rank takes them.
    controls: Vec<(Rank, OwnedFd)>,
    /// The connections for point-to-point messages, until they are taken.
    messages: Option<Line>,
}

impl Tcp {
    fn new(streams: Vec<Option<Stream>>, spins: u32) -> Self {
        let (block, posts, controls, messages) = Default::default();
        Self { streams, block, posts, spins: Cell::new(spins), controls, messages }
    }

    /// The connections for point-to-point messages.
    pub(super) fn take_messages(&mut self) -> Option<Line> {
        self.messages.take()
    }

    /// The connections over which whoever watches over this rank exchanges states and failures with other nodes.
    pub(super) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        std::mem::take(&mut self.controls)
    }

    pub(super) fn set_spins(&self, spins: u32) {
        self.spins.set(spins);
    }

    fn stream(&self, rank: Rank) -> &Stream {
        self.streams[rank].as_ref().expect("a connection with a rank that shares no memory with this one")
    }

    fn streams(&self) -> impl Iterator<Item = (Rank, &Stream)> {
        self.streams.iter().enumerate().filter_map(|(rank, stream)| Some((rank, stream.as_ref()?)))
    }

    /// Whether nothing is posted.
    pub(super) fn is_idle(&self) -> bool {
        self.posts.borrow().are_none()
    }

    /// Sends and receives at most one message each, over connections or through the memory of this node. When it returns, the
    /// sent bytes may change.
    #[inline]
    pub(super) fn exchange(
        &self,
        (node, status): (Option<&mut Shared>, &StatusBoard),
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
            node => self.exchange_any((node, status), header, outgoing, incoming, deadlines),
        }
    }

    /// The same while exchanges are posted, and with a rank of this node and one of another.
    fn exchange_any(
        &self,
        (node, status): (Option<&mut Shared>, &StatusBoard),
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
        let (near_send, near_receive, around) =
            near.map_or((None, None, None), |(send, receive, around)| (send, receive, Some(around)));
        let far_send = far_out.map(|outgoing| Sending::new(self, header, outgoing));
        let far_receive = far_in.map(|incoming| Receiving::new((self, status), header, incoming));
        let mut sending = Either { near: near_send, far: far_send };
        let mut receiving = Beside {
            half: Either { near: near_receive, far: far_receive },
            drive: || self.progress_posted(),
        };
        sending.progress()?;
        let nap = || self.nap(if around.is_some() { SHORT_NAP } else { NAP });
        let waiting = Waiting::new(self.spins.get(), deadlines, status).napping(Nap(&nap));
        let mut listening = Listening { tcp: self, status, header, gone_since: None };
        complete(&mut sending, &mut receiving, waiting, |other, waiting| {
            let far = listening.look_around(other, waiting)?;
            match around.filter(|around| around.has(other)) {
                // Messages of a rank of this node are here before it leaves.
                Some(around) => around.look(other, waiting),
                None => Ok(far),
            }
        })
    }

    /// Posts an exchange with a rank of another node: sends the bytes, of which it copies what the kernel does not take, and
    /// receives `size_bytes`. Exchanges between two ranks match in the order in which both post them.
    pub(super) fn post(
        &self,
        status: &StatusBoard,
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
    ) -> Result<Ticket, Failure> {
        let &Outgoing { to, bytes } = outgoing;
        self.stream(to).give(&header.of_size(bytes.len()), bytes);
        Ok(self.posts.borrow_mut().add(to, header.of_size(size_bytes), status, size_bytes))
    }

    /// Waits for a posted exchange and consumes what it received.
    pub(super) fn complete(
        &self,
        status: &StatusBoard,
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let mut post = self.posts.borrow_mut().take(ticket);
        let mut sending = Flush { tcp: self, to: post.with };
        let half = Receiving::of_post((self, status), &mut post, target.lend());
        let mut receiving = Beside { half, drive: || self.progress_posted() };
        let nap = || self.nap(NAP);
        let waiting = Waiting::new(self.spins.get(), deadlines, status).napping(Nap(&nap));
        let mut listening = Listening { tcp: self, status, header, gone_since: None };
        complete(&mut sending, &mut receiving, waiting, |other, waiting| {
            listening.look_around(other, waiting)
        })?;
        self.posts.borrow_mut().end(post);
        Ok(())
    }

    /// The failure of a rank whose connection is lost.
    fn lost(&self, other: Rank, status: &StatusBoard) -> Option<Failure> {
        let cause = self.streams.get(other)?.as_ref()?.lost()?;
        let cause = format!("the connection with rank {other} is lost: {cause}");
        Some(Failure::Error(Error::Aborted { rank: status.rank(), by: other, cause }))
    }

    /// Makes progress on what was posted. Returns whether there was any.
    fn progress_posted(&self) -> Result<bool, Failure> {
        if self.is_idle() {
            return Ok(false);
        }
        let mut moved = false;
        for (_, stream) in self.streams() {
            moved |= stream.flush();
        }
        Ok(moved | self.posts.borrow_mut().progress(self)?)
    }

    /// Sleeps until a connection can go on, but not for longer than this.
    fn nap(&self, most: Duration) {
        stream::wait(self.streams().map(|(_, stream)| stream), most);
    }
}

/// What a rank looks for while it waits.
struct Listening<'a> {
    tcp: &'a Tcp,
    status: &'a StatusBoard,
    header: &'a Header,
    /// When it became known that the awaited rank will not send.
    gone_since: Option<Instant>,
}

impl Listening<'_> {
    fn look_around(&mut self, other: Rank, waiting: &Waiting<'_>) -> Result<Sight, Failure> {
        if waiting.is_long() {
            self.overhear()?;
            self.header.check_called(other, self.status)?;
        }
        let hopeless = Failure::left(other, self.status).or_else(|| self.tcp.lost(other, self.status));
        let Some(failure) = hopeless else { return Ok(Sight::Nothing) };
        // Who watches over the ranks may know more, and tells it meanwhile.
        let gone_since = *self.gone_since.get_or_insert_with(Instant::now);
        let silence = gone_since.elapsed().min(waiting.silence());
        Ok(if silence > STRAGGLING { Sight::Hopeless(failure) } else { Sight::Nothing })
    }

    /// Checks the next messages of ranks that this one does not wait for: two ranks that make different calls would otherwise
    /// wait for each other, or for a third, until the deadline.
    fn overhear(&self) -> Result<(), Failure> {
        self.tcp.streams().try_for_each(|(from, stream)| match stream.ahead() {
            Some(theirs) => self.header.check_overheard(&theirs, from, self.status),
            None => Ok(()),
        })
    }
}
