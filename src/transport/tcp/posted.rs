//! Exchanges that go on while a rank does something else.

use std::collections::VecDeque;

use unisono_collectives::Rank;

use super::{PIECE, Tcp};
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Ticket};

/// The receiving half of a posted exchange. (What is left of the other is in the connection's queue.)
#[derive(Debug)]
pub(super) struct Post {
    number: u64,
    pub(super) with: Rank,
    pub(super) expected: Header,
    /// It knows the names of labels.
    status: StatusBoard,
    pub(super) received: Scratch,
    size_bytes: usize,
    pub(super) arrived: usize,
    pub(super) is_checked: bool,
}

/// Posted exchanges, oldest first.
#[derive(Debug, Default)]
pub(super) struct Posts {
    begun: u64,
    posts: VecDeque<Post>,
    /// The one that this rank completes now: its rank and number.
    current: Option<(Rank, u64)>,
    /// The memory of completed ones, for reuse.
    spare: Vec<Scratch>,
}

impl Posts {
    pub(super) fn are_none(&self) -> bool {
        self.posts.is_empty()
    }

    pub(super) fn add(
        &mut self,
        with: Rank,
        expected: Header,
        status: &StatusBoard,
        size_bytes: usize,
    ) -> Ticket {
        self.begun += 1;
        let (number, received) = (self.begun, self.spare.pop().unwrap_or_default());
        let status = status.clone();
        let (arrived, is_checked) = (0, false);
        self.posts.push_back(Post {
            number,
            with,
            expected,
            status,
            received,
            size_bytes,
            arrived,
            is_checked,
        });
        Ticket(number)
    }

    /// Takes out the one that this rank completes.
    pub(super) fn take(&mut self, ticket: Ticket) -> Post {
        let place = self.posts.iter().position(|post| post.number == ticket.0);
        let place = place.expect("an exchange is waited for once");
        let post = self.posts.remove(place).expect("it is there");
        self.current = Some((post.with, post.number));
        post
    }

    /// Ends what [`Self::take`] began.
    pub(super) fn end(&mut self, post: Post) {
        self.current = None;
        self.spare.push(post.received);
    }

    /// Whether messages of a rank are expected before the one that this rank waits for now.
    pub(super) fn are_before_current(&self, with: Rank) -> bool {
        let before = self.current.filter(|current| current.0 == with).map_or(u64::MAX, |(_, number)| number);
        self.posts.iter().any(|post| post.with == with && post.number < before && !post.is_here())
    }

    /// Receives what is there, of the oldest message of each rank. Returns whether there was anything.
    pub(super) fn progress(&mut self, tcp: &Tcp) -> Result<bool, Failure> {
        let mut moved = false;
        for place in 0..self.posts.len() {
            let (with, number) = (self.posts[place].with, self.posts[place].number);
            let is_later = self.current.is_some_and(|(rank, current)| rank == with && current < number);
            let is_first = || self.posts.range(..place).all(|post| post.with != with || post.is_here());
            if !self.posts[place].is_here() && !is_later && is_first() {
                moved |= self.posts[place].progress(tcp)?;
            }
        }
        Ok(moved)
    }
}

impl Post {
    fn is_here(&self) -> bool {
        self.is_checked && self.arrived == self.size_bytes
    }

    fn progress(&mut self, tcp: &Tcp) -> Result<bool, Failure> {
        let stream = tcp.stream(self.with);
        let end = self.size_bytes.min(self.arrived + PIECE);
        let received = self.received.reserve(self.size_bytes).map_err(Failure::Error)?;
        let Some(arrived) = stream.receive(&mut received[self.arrived..end]) else { return Ok(false) };
        if !self.is_checked {
            let Some(theirs) = stream.header() else { return Ok(true) };
            self.expected.check(&theirs, self.with, &self.status)?;
            self.is_checked = true;
        }
        self.arrived += arrived;
        if self.is_here() {
            stream.end_message();
        }
        Ok(true)
    }
}

/// Waits until the kernel has taken what was posted for a rank.
pub(super) struct Flush<'a> {
    pub(super) tcp: &'a Tcp,
    pub(super) to: Rank,
}

impl Half for Flush<'_> {
    fn other(&self) -> Rank {
        self.to
    }

    fn is_done(&self) -> bool {
        self.tcp.stream(self.to).is_flushed()
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        Ok(self.tcp.stream(self.to).flush())
    }
}
