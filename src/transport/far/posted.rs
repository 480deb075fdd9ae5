//! Exchanges that progress while a rank does other work. Their bytes are in memory of the library, so that the rank may work on its array in
//! the meantime. Copies are cheap compared to a network.

use std::collections::VecDeque;

use unisono_collectives::Rank;

use super::halves::Transfer;
use crate::error::Result;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::link::Link;
use crate::transport::{Failure, Header, Outgoing, Polled, Target};

/// Posted exchanges, oldest first. They complete in this order.
#[derive(Debug, Default)]
pub(super) struct Posts {
    posts: VecDeque<Post>,
    /// The memory of completed exchanges, for reuse.
    spare: Vec<Scratch>,
}

#[derive(Debug)]
struct Post {
    sent: Option<Message>,
    received: Option<Message>,
}

const POSTED: &str = "a program completes what it has posted";

/// A message to or from a rank, and its bytes.
#[derive(Debug)]
struct Message {
    transfer: Transfer,
    memory: Scratch,
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
    ) -> Result<()> {
        let mut message = |other, size_bytes| Message {
            transfer: Transfer::new(other, header, size_bytes),
            memory: self.spare.pop().unwrap_or_default(),
        };
        let mut sent = outgoing.as_ref().map(|outgoing| message(outgoing.to, outgoing.bytes.len()));
        let mut received = incoming.map(|(from, size_bytes)| message(from, size_bytes));
        if let (Some(sent), Some(outgoing)) = (&mut sent, outgoing) {
            sent.memory.copy_of(outgoing.bytes)?;
        }
        if let Some(received) = &mut received {
            received.memory.reserve(received.transfer.size_bytes())?;
        }
        self.posts.push_back(Post { sent, received });
        Ok(())
    }

    /// Returns the awaited rank of the oldest exchange; `None` if the exchange is complete.
    pub(super) fn awaits(&self) -> Option<Rank> {
        let Post { sent, received } = self.posts.front().expect(POSTED);
        let mut transfers = received.iter().chain(sent).map(|message| &message.transfer);
        transfers.find(|transfer| !transfer.is_done).map(|transfer| transfer.other)
    }

    /// Ends the oldest exchange, which is complete: the target consumes the received message.
    pub(super) fn end(&mut self, target: Option<&mut Target<'_>>) {
        let Post { sent, mut received } = self.posts.pop_front().expect(POSTED);
        if let (Some(received), Some(target)) = (&mut received, target) {
            target.accept(0, received.memory.take(received.transfer.size_bytes()));
        }
        self.spare.extend(sent.into_iter().chain(received).map(|message| message.memory));
    }

    /// Returns whether a message to a rank is not sent yet, so that a later one must wait.
    pub(super) fn has_unsent_to(&self, to: Rank) -> bool {
        is_before(&self.posts, |post| &post.sent, to)
    }

    /// Returns whether a message from a rank has not arrived yet, so that a later one must wait.
    pub(super) fn has_awaited_from(&self, from: Rank) -> bool {
        is_before(&self.posts, |post| &post.received, from)
    }

    /// Continues the oldest message to each rank and the oldest from each rank. Returns whether there was progress.
    pub(super) fn progress(&mut self, link: &mut dyn Link, status: &StatusBoard) -> Result<bool, Failure> {
        let mut moved = false;
        let posts = self.posts.make_contiguous();
        for place in 0..posts.len() {
            let (before, after) = posts.split_at_mut(place);
            let Post { sent, received } = &mut after[0];
            if let Some(Message { transfer, memory }) = sent
                && !transfer.is_done
                && !is_before(&*before, |post| &post.sent, transfer.other)
            {
                moved |= transfer.send(link, memory.take(transfer.size_bytes()))? != Polled::Idle;
            }
            if let Some(Message { transfer, memory }) = received
                && !transfer.is_done
                && !is_before(&*before, |post| &post.received, transfer.other)
            {
                moved |= transfer.receive(link, memory.take(transfer.size_bytes()), status)? != Polled::Idle;
            }
        }
        Ok(moved)
    }
}

/// Returns whether one of these messages, all sent or all received, delays a later one to or from a rank.
fn is_before<'a>(
    posts: impl IntoIterator<Item = &'a Post>,
    message: fn(&Post) -> &Option<Message>,
    other: Rank,
) -> bool {
    let mut transfers = posts.into_iter().filter_map(|post| Some(&message(post).as_ref()?.transfer));
    transfers.any(|transfer| transfer.other == other && !transfer.is_done)
}
