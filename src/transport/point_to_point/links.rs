//! The links for messages. At any time, at most one message to each rank and one from each rank is in transit.

use std::time::Duration;

use unisono_collectives::Rank;

use super::PointToPoint;
use crate::status::StatusBoard;
use crate::transport::far::{holds_memory, lost};
use crate::transport::faulty::Faults;
use crate::transport::half::Polled;
use crate::transport::link::Link;
use crate::transport::waiting::IN_FLIGHT_GRACE;
use crate::transport::{Fabric, Failure, Header, Messages, Outgoing, shared, spins};

/// The links of a rank for messages. They are separate from the links for collectives, so that neither delays the other.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The memory shared with the ranks of this node.
    near: Option<shared::Line>,
    /// The link with ranks that share no memory with this one.
    far: Option<Box<dyn Link>>,
    faults: Option<Faults>,
}

const CONNECTED: &str = "a link with every rank";

impl Links {
    fn near(&mut self, rank: Rank) -> Option<&mut shared::Line> {
        self.near.as_mut().filter(|near| near.has(rank))
    }

    fn far(&mut self) -> &mut dyn Link {
        &mut **self.far.as_mut().expect(CONNECTED)
    }

    /// Delays a call, if faults are injected.
    pub(super) fn delay(&mut self) {
        if let Some(faults) = &mut self.faults {
            faults.delay();
        }
    }

    /// Returns whether the next message to a rank is lost, if faults are injected.
    pub(super) fn loses(&mut self, to: Rank) -> bool {
        self.faults.as_mut().is_some_and(|faults| faults.loses(to))
    }

    /// Continues to send a message. `given` is initially 0, and its meaning is defined by the link.
    pub(super) fn send(
        &mut self,
        header: &Header,
        outgoing: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        if let Some(near) = self.near(outgoing.to) {
            return near.send(header, outgoing, given);
        }
        self.far().send(header, outgoing, given)
    }

    /// Withdraws a message in transit, before its bytes return to their owner.
    pub(super) fn withdraw(&mut self, header: &Header, outgoing: Outgoing<'_>, given: usize) {
        if let Some(near) = self.near(outgoing.to) {
            near.withdraw(header, outgoing, given);
        } else {
            holds_memory(self.far(), outgoing.to);
        }
    }

    /// Withdraws the message that arrives from a rank, before its place returns to its owner. Returns whether the link may still write there.
    pub(super) fn withdraw_from(&mut self, from: Rank) -> bool {
        self.near(from).is_none() && self.far.as_mut().is_some_and(|far| holds_memory(&mut **far, from))
    }

    /// Returns the header of the next message from a rank, if it has arrived.
    pub(super) fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        if let Some(near) = self.near(from) {
            return Ok(near.ahead(from));
        }
        self.far().ahead(from)
    }

    /// Continues to receive the next message from a rank, whose header is this one, into a place of its size. `taken` is initially 0, and its
    /// meaning is defined by the link.
    pub(super) fn receive(
        &mut self,
        header: &Header,
        from: Rank,
        place: &mut [u8],
        taken: &mut usize,
    ) -> Result<Polled, Failure> {
        if let Some(near) = self.near(from) {
            return near.receive(header, from, place, taken);
        }
        self.far().receive(from, place, taken)
    }

    /// Returns the reason why a rank no longer sends and receives, and the longest time that its earlier messages may still take to arrive.
    pub(super) fn gone(&mut self, other: Rank, status: &StatusBoard) -> Option<(Failure, Duration)> {
        let left = Failure::left(other, status);
        if self.near(other).is_some() {
            return left.map(|failure| (failure, Duration::ZERO));
        }
        left.or_else(|| lost(self.far(), other, status)).map(|failure| (failure, IN_FLIGHT_GRACE))
    }

    /// Returns whether the link may access memory of the program, which must therefore not continue after a
    /// failure.
    pub(super) fn are_stranded(&self, ranks: usize) -> bool {
        self.far.as_ref().is_some_and(|far| (0..ranks).any(|other| far.holds_memory(other)))
    }

    /// As [`Link::end_job`].
    pub(super) fn end_job(&self, status: &StatusBoard) -> ! {
        self.far.as_ref().expect(CONNECTED).end_job(status)
    }
}

impl Fabric {
    /// Returns the links for point-to-point messages; called once.
    pub(crate) fn messages(&mut self) -> Messages {
        let near = self.node.as_ref().map(shared::Shared::for_messages);
        let faults = self.faults.as_mut().map(|faults| faults.for_messages());
        let links = Links { near, far: self.messages.take(), faults };
        let spins = spins(self.local_ranks(), self.node_cores);
        Messages::new(PointToPoint::new(links, self.status.clone(), spins))
    }
}
