//! The receiving half of an exchange.

use unisono_collectives::Rank;

use super::posted::Post;
use super::{PIECE, Tcp};
use crate::kernels;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::half::Half;
use crate::transport::{Failure, Header, Incoming, Target};

/// A message on its way from the kernel to its target.
pub(super) struct Receiving<'a> {
    tcp: &'a Tcp,
    status: &'a StatusBoard,
    from: Rank,
    expected: Header,
    target: Target<'a>,
    size_bytes: usize,
    is_checked: bool,
    /// How much of the payload the target has consumed.
    consumed: usize,
    /// How many bytes of a further element are in the block.
    begun: usize,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        (tcp, status): (&'a Tcp, &'a StatusBoard),
        header: &Header,
        Incoming { from, target }: Incoming<'a>,
    ) -> Self {
        let size_bytes = target.size_bytes();
        let expected = header.of_size(size_bytes);
        Self { tcp, status, from, expected, target, size_bytes, is_checked: false, consumed: 0, begun: 0 }
    }

    /// What is left of a posted exchange: the target consumes what has arrived, and the rest goes straight there.
    pub(super) fn of_post(
        (tcp, status): (&'a Tcp, &'a StatusBoard),
        post: &mut Post,
        target: Target<'a>,
    ) -> Self {
        let mut receiving = Self::new((tcp, status), &post.expected, Incoming { from: post.with, target });
        receiving.is_checked = post.is_checked;
        let arrived = post.received.take(post.arrived);
        let whole = arrived.len() - arrived.len() % receiving.target.wire_size_bytes();
        receiving.target.accept(0, &arrived[..whole]);
        let begun = &arrived[whole..];
        kernels::copy(&mut tcp.block.borrow_mut().take(PIECE)[..begun.len()], begun);
        (receiving.consumed, receiving.begun) = (whole, begun.len());
        receiving
    }

    /// Receives what is there into its place, or into the block.
    fn receive(&mut self, block: &mut Scratch) -> Option<usize> {
        let (stream, left) = (self.tcp.stream(self.from), self.size_bytes - self.consumed);
        match &mut self.target {
            Target::Place(place) => {
                stream.receive(&mut place[self.consumed..self.consumed + left.min(PIECE)])
            }
            Target::Apply { .. } | Target::Custom { .. } => {
                stream.receive(&mut block.take(PIECE)[self.begun..left.min(PIECE)])
            }
        }
    }

    /// Lets the target consume what has arrived.
    fn consume(&mut self, arrived: usize, block: &mut Scratch) {
        if let Target::Place(_) = self.target {
            self.consumed += arrived;
            return;
        }
        let here = self.begun + arrived;
        let whole = here - here % self.target.wire_size_bytes();
        let block = block.take(PIECE);
        self.target.accept(self.consumed, &block[..whole]);
        block.copy_within(whole..here, 0);
        (self.consumed, self.begun) = (self.consumed + whole, here - whole);
    }
}

impl Half for Receiving<'_> {
    fn other(&self) -> Rank {
        self.from
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.is_checked && self.consumed == self.size_bytes
    }

    #[inline]
    fn progress(&mut self) -> Result<bool, Failure> {
        if self.is_done() || self.tcp.posts.borrow().are_before_current(self.from) {
            return Ok(false);
        }
        let tcp = self.tcp;
        let mut block = tcp.block.borrow_mut();
        let Some(arrived) = self.receive(&mut block) else { return Ok(false) };
        let stream = tcp.stream(self.from);
        if !self.is_checked {
            let Some(theirs) = stream.header() else { return Ok(true) };
            self.expected.check(&theirs, self.from, self.status)?;
            self.is_checked = true;
        }
        self.consume(arrived, &mut block);
        if self.is_done() {
            stream.end_message();
        }
        Ok(true)
    }
}
