//! Exchanges that go on while a rank does something else. Their bytes are in memory of the library, so that the rank may work on its
//! array meanwhile: copies are cheap compared to a network.

use std::collections::VecDeque;

use unisono_collectives::Rank;

use crate::error::Result;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::half::Polled;
use crate::transport::link::Link;
use crate::transport::{Failure, Header, Outgoing, Target};

/// The number of a posted exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Posted exchanges, oldest first.
#[derive(Debug, Default)]
pub(super) struct Posts {
    begun: u64,
    posts: VecDeque<Post>,
    /// The memory of completed ones, for reuse.
    spare: Vec<Scratch>,
}

#[derive(Debug)]
struct Post {
    number: u64,
    sent: Option<Message>,
    received: Option<Message>,
}

/// A message to or from a rank.
#[derive(Debug)]
struct Message {
    other: Rank,
    header: Header,
    memory: Scratch,
    size_bytes: usize,
    /// How much the link has taken of it, or delivered.
    moved: usize,
    /// Whether the header of a received message is as expected.
    is_checked: bool,
    is_done: bool,
}

impl Posts {
    pub(super) fn are_none(&self) -> bool {
        self.posts.is_empty()
    }

    pub(super) fn add(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<(Rank, usize)>,
    ) -> Result<Ticket> {
        let mut message = |other, size_bytes| Message {
            other,
            header: header.of_size(size_bytes),
            memory: self.spare.pop().unwrap_or_default(),
            size_bytes,
            moved: 0,
            is_checked: false,
            is_done: false,
        };
        let mut sent = outgoing.as_ref().map(|outgoing| message(outgoing.to, outgoing.bytes.len()));
        let mut received = incoming.map(|(from, size_bytes)| message(from, size_bytes));
        if let (Some(sent), Some(outgoing)) = (&mut sent, outgoing) {
            sent.memory.copy_of(outgoing.bytes)?;
        }
        if let Some(received) = &mut received {
            received.memory.reserve(received.size_bytes)?;
        }
        self.begun += 1;
        self.posts.push_back(Post { number: self.begun, sent, received });
        Ok(Ticket(self.begun))
    }

    fn place(&self, Ticket(number): Ticket) -> usize {
        self.posts.iter().position(|post| post.number == number).expect("an exchange is waited for once")
    }

    /// The rank that a posted exchange waits for; `None` if it is complete.
    pub(super) fn awaits(&self, ticket: Ticket) -> Option<Rank> {
        let Post { sent, received, .. } = &self.posts[self.place(ticket)];
        let unfinished = |message: &&Message| !message.is_done;
        received.iter().find(unfinished).or_else(|| sent.iter().find(unfinished)).map(|message| message.other)
    }

    /// Ends a complete exchange: the target consumes what it has received.
    pub(super) fn end(&mut self, ticket: Ticket, target: Option<&mut Target<'_>>) {
        let Post { sent, mut received, .. } =
            self.posts.remove(self.place(ticket)).expect("it is at its place");
        if let (Some(received), Some(target)) = (&mut received, target) {
            target.accept(0, received.memory.take(received.size_bytes));
        }
        self.spare.extend(sent.into_iter().chain(received).map(|message| message.memory));
    }

    /// Whether a message to a rank is not sent yet: a later one waits for it.
    pub(super) fn send_to(&self, to: Rank) -> bool {
        self.posts.iter().filter_map(|post| post.sent.as_ref()).any(|sent| sent.is_before(to))
    }

    /// Whether a message from a rank has not arrived yet: a later one does after it.
    pub(super) fn receive_from(&self, from: Rank) -> bool {
        self.posts.iter().filter_map(|post| post.received.as_ref()).any(|received| received.is_before(from))
    }

    /// Continues the oldest message to each rank and from each. Returns whether there was progress.
    pub(super) fn progress(&mut self, link: &mut dyn Link, status: &StatusBoard) -> Result<bool, Failure> {
        let mut moved = false;
        let posts = self.posts.make_contiguous();
        for place in 0..posts.len() {
            let (before, after) = posts.split_at_mut(place);
            let Post { sent, received, .. } = &mut after[0];
            if let Some(sent) = sent
                && !before.iter().filter_map(|post| post.sent.as_ref()).any(|one| one.is_before(sent.other))
            {
                moved |= sent.send(link)?;
            }
            if let Some(received) = received
                && !before
                    .iter()
                    .filter_map(|post| post.received.as_ref())
                    .any(|one| one.is_before(received.other))
            {
                moved |= received.receive(link, status)?;
            }
        }
        Ok(moved)
    }
}

impl Message {
    /// Whether a later message to, or from, a rank waits for this one.
    fn is_before(&self, other: Rank) -> bool {
        self.other == other && !self.is_done
    }

    fn send(&mut self, link: &mut dyn Link) -> Result<bool, Failure> {
        if self.is_done {
            return Ok(false);
        }
        let outgoing = Outgoing { to: self.other, bytes: self.memory.take(self.size_bytes) };
        let polled = link.send(&self.header, outgoing, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }

    fn receive(&mut self, link: &mut dyn Link, status: &StatusBoard) -> Result<bool, Failure> {
        if self.is_done {
            return Ok(false);
        }
        if !self.is_checked {
            let Some(theirs) = link.ahead(self.other)? else { return Ok(false) };
            self.header.check(&theirs, self.other, status)?;
            self.is_checked = true;
        }
        let place = self.memory.take(self.size_bytes);
        let polled = link.receive(self.other, place, &mut self.moved)?;
        self.is_done = polled == Polled::Done;
        Ok(polled != Polled::Idle)
    }
}
