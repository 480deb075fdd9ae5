//! Non-blocking exchanges between nodes.
//!
//! Both buffers belong to the communicator, so MPI never holds the caller's memory, and the caller can work on the rest of the
//! array meanwhile. The copies are cheap compared to the network.

use std::os::fd::OwnedFd;

use unisono_collectives::Rank;

use super::Mpi;
use super::exchange::Messages;
use super::flight::Flight;
use super::overheard::Listening;
use super::sys::Comm;
use crate::status::StatusBoard;
use crate::transport::half::{Beside, Half as _, complete};
use crate::transport::tcp::Tcp;
use crate::transport::{Deadlines, Failure, Header, Incoming, Outgoing, Target, Ticket, Waiting};

impl Mpi {
    /// As [`Tcp::take_controls`], if messages between nodes do not go through MPI.
    pub(crate) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        self.tcp.as_mut().map(Tcp::take_controls).unwrap_or_default()
    }

    /// An exchange in this node while others are posted between nodes.
    pub(super) fn exchange_beside(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        self.check_thread();
        let node = self.node.as_mut().expect("the exchange is in this node");
        let (mut sending, receiving, around) = node.halves(header, outgoing, incoming);
        sending.progress()?;
        let flights = &mut self.messages.flights;
        // MPI's progress is none of this exchange's.
        let mut receiving = Beside { half: receiving, drive: || flights.progress().map(|()| false) };
        let waiting = Waiting::new(self.spins, deadlines, &self.status).for_long();
        complete(&mut sending, &mut receiving, waiting, |other, waiting| around.look(other, waiting))
    }

    /// Posts an exchange with a rank of another node: sends a copy of the bytes and receives `size_bytes`. Both ranks post the
    /// exchanges between them in the same order.
    pub(crate) fn post(
        &mut self,
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
        deadlines: &Deadlines,
    ) -> Result<Ticket, Failure> {
        if let Some(tcp) = &self.tcp {
            return tcp.post(&self.status, header, outgoing, size_bytes);
        }
        self.check_thread();
        self.messages.post((self.comm, &self.status), header, outgoing, size_bytes, deadlines)
    }

    /// Waits for a posted exchange and consumes what it received.
    pub(crate) fn complete(
        &mut self,
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        if let Some(tcp) = &self.tcp {
            return tcp.complete(&self.status, header, ticket, target, deadlines);
        }
        self.check_thread();
        self.messages.complete((self.comm, &self.status), header, ticket, target, deadlines)
    }
}

impl Messages {
    /// Posts an exchange with a rank of another node, with a copy of the bytes. Receives as many bytes as it sends, or
    /// `size_bytes`.
    ///
    /// Exchanges between two ranks match in the order in which both post them.
    pub(super) fn post(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
        deadlines: &Deadlines,
    ) -> Result<Ticket, Failure> {
        let mut waiting = Waiting::new(self.spins, deadlines, status);
        let Outgoing { to: with, bytes } = *outgoing;
        let segment = self.link(comm, with).segment;
        let mut listening =
            Listening { comm, status, header, overheard: &mut self.overheard, gone_since: None };
        let overheard = listening.recall(with, &mut waiting)?;
        let flights = &mut self.flights;
        flights.begun += 1;
        let mut flight = flights.landed.pop().unwrap_or_default();
        (flight.number, flight.with) = (flights.begun, with);
        flight.expected = Some((header.of_size(size_bytes), status.clone()));
        flight.received_bytes = size_bytes;
        // Stored before MPI gets any of its memory, and kept whatever fails.
        flights.flying.push_back(flight);
        let flight = flights.flying.back_mut().expect("it was just put there");
        flight.ask(comm, segment, overheard)?;
        flight.give(comm, segment, header, bytes).map_err(Failure::Error)?;
        Ok(Ticket(flight.number))
    }

    /// Waits for a posted exchange and consumes what it received.
    pub(super) fn complete(
        &mut self,
        (comm, status): (Comm, &StatusBoard),
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        let flights = &mut self.flights;
        let place = flights.flying.iter().position(|flight| flight.number == ticket.0);
        let place = place.expect("an exchange is waited for once");
        let mut listening =
            Listening { comm, status, header, overheard: &mut self.overheard, gone_since: None };
        let waiting = Waiting::new(self.spins, deadlines, status).for_long();
        let flight = &mut flights.flying[place];
        complete(&mut None::<Flight>, flight, waiting, |other, waiting| {
            listening.look_around(other, waiting)
        })?;
        target.accept(0, flight.received.take(flight.received_bytes));
        let landed = flights.flying.remove(place).expect("it is there");
        flights.landed.push(landed);
        Ok(())
    }
}
