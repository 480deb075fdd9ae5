//! The links for messages.

use std::time::Duration;

use unisono_collectives::Rank;

use super::{PointToPoint, Send};
use crate::status::StatusBoard;
use crate::transport::far::{holds_memory, lost};
use crate::transport::faulty::Faults;
use crate::transport::half::Polled;
use crate::transport::link::Link;
use crate::transport::shared::Shared;
use crate::transport::waiting::IN_FLIGHT_GRACE;
use crate::transport::{Fabric, Failure, Header, Messages, Outgoing, spins};

/// The links of a rank for messages, over its node and between nodes.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The memory shared with the ranks of this node.
    near: Option<Shared>,
    /// The link with ranks that share no memory with this one.
    far: Option<Box<dyn Link>>,
    faults: Option<Faults>,
}

const CONNECTED: &str = "a link with every rank";

impl Links {
    fn near(&mut self, rank: Rank) -> Option<&mut Shared> {
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

    /// As [`Link::send`].
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

    /// Withdraws a message that may be in transit, before its bytes return to their owner.
    pub(super) fn withdraw(&mut self, to: Rank, Send { call, bytes, given }: &Send) {
        if *given == 0 {
            return;
        }
        if let Some(near) = self.near(to) {
            // SAFETY: the caller of `PointToPoint::send` keeps the bytes until the operation has ended.
            let outgoing = Outgoing { to, bytes: unsafe { &**bytes } };
            near.withdraw(&call.header, outgoing, *given);
        } else {
            holds_memory(self.far(), to);
        }
    }

    /// Withdraws the message that arrives from a rank, before its place returns to its owner. Returns whether the link may still write there.
    pub(super) fn withdraw_from(&mut self, from: Rank) -> bool {
        self.near(from).is_none() && self.far.as_mut().is_some_and(|far| holds_memory(&mut **far, from))
    }

    /// Returns the header of the next message from a rank, if it has arrived.
    pub(super) fn ahead(&mut self, from: Rank) -> Result<Option<Header>, Failure> {
        if let Some(near) = self.near(from) {
            return Ok(near.ahead(from).copied());
        }
        self.far().ahead(from)
    }

    /// As [`Link::receive`], for the message with this header, into a place of its size.
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
    pub(super) fn gone(&self, other: Rank, status: &StatusBoard) -> Option<(Failure, Duration)> {
        let left = Failure::left(other, status);
        if self.near.as_ref().is_some_and(|near| near.has(other)) {
            return left.map(|failure| (failure, Duration::ZERO));
        }
        let lost = || lost(&**self.far.as_ref().expect(CONNECTED), other, status);
        left.or_else(lost).map(|failure| (failure, IN_FLIGHT_GRACE))
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
        let near = self.node.as_ref().map(Shared::for_messages);
        let faults = self.faults.as_mut().map(|faults| faults.for_messages());
        let links = Links { near, far: self.messages.take(), faults };
        let spins = spins(self.local_ranks(), self.node_cores);
        Messages::new(PointToPoint::new(links, self.status.clone()), spins)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Arrival, Arriving, OnEnd, Options, Receive};
    use super::*;
    use crate::dtype::DType;

    /// A link that may or may not still write to the memory of messages.
    #[derive(Debug)]
    struct Holding(bool);

    impl Link for Holding {
        fn send(&mut self, _: &Header, _: Outgoing<'_>, _: &mut usize) -> Result<Polled, Failure> {
            Ok(Polled::Idle)
        }

        fn ahead(&mut self, _: Rank) -> Result<Option<Header>, Failure> {
            Ok(None)
        }

        fn receive(&mut self, _: Rank, _: &mut [u8], _: &mut usize) -> Result<Polled, Failure> {
            Ok(Polled::Idle)
        }

        fn holds_memory(&self, _: Rank) -> bool {
            self.0
        }
    }

    #[test]
    fn arriving_message_is_freed_only_if_its_link_has_released_it() {
        for holds in [false, true] {
            let status = StatusBoard::of_threads(2).unwrap().remove(0);
            let links = Links { far: Some(Box::new(Holding(holds))), ..Links::default() };
            let mut messages = PointToPoint::new(links, status);
            let message = Arc::new(());
            let owner = Arc::clone(&message);
            let on_end: OnEnd = Box::new(move |_| drop(owner));
            let header = Header::of_message(DType::U8, 0, (0, 0), 0);
            let call = messages.begin(&Options::OF_BYTES, header, ("receive", 0), Some(on_end));
            let place = std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0);
            let target = Arrival::Receive(Receive { call, from: Some(1), place });
            messages.peers[1].arriving = Some(Arriving { header, target, taken: 0 });
            drop(messages);
            assert_eq!(Arc::strong_count(&message), if holds { 2 } else { 1 });
        }
    }
}
