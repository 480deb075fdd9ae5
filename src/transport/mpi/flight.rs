//! Exchanges that go on while a rank does something else.
//!
//! What is sent lies in memory of the communicator, and what arrives stays there until it is asked for: so MPI never has the
//! caller's memory, and the caller may work on the rest of an array meanwhile. A copy costs little beside a network.

use std::collections::VecDeque;
use std::ffi::c_int;

use unisono_collectives::Rank;

use super::Mpi;
use super::exchange::{FIRST, FIRST_TAG, Messages, SEGMENT_TAG};
use super::overheard::Listening;
use super::sys::{Comm, Request};
use crate::error::Result;
use crate::scratch::Scratch;
use crate::status::Roll;
use crate::transport::half::{Half, complete};
use crate::transport::{Failure, Header, Incoming, Outgoing, Patience, Target, Waiting};

/// An exchange that was begun, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The exchanges that are under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Flights {
    begun: u64,
    flying: VecDeque<Flight>,
    /// Their memory, for the next ones.
    landed: Vec<Flight>,
}

/// One exchange: a message to a rank, and one from it.
#[derive(Debug, Default)]
struct Flight {
    number: u64,
    with: Rank,
    /// What the first message must say, and where labels have their names.
    expected: Option<(Header, Roll)>,
    /// The first messages: a header, and nothing else.
    first_sent: Scratch,
    first_received: Scratch,
    sent: Scratch,
    received: Scratch,
    received_bytes: usize,
    /// Oldest first; of those that receive, the first message's is the first.
    sends: VecDeque<Request>,
    receives: VecDeque<Request>,
}

impl Flights {
    /// Whether MPI has none of their memory.
    pub(super) fn are_none(&self) -> bool {
        self.flying.is_empty()
    }

    /// Lets MPI work on what is under way, from inside of another wait.
    pub(super) fn progress(&mut self) -> Result<(), Failure> {
        // A test of any request makes MPI look at all of them.
        let unfinished = self.flying.iter_mut().find(|flight| !flight.is_done());
        unfinished.map_or(Ok(()), |flight| flight.progress().map(drop))
    }
}

impl Mpi {
    /// An exchange in this node, while others are under way between nodes.
    pub(super) fn exchange_beside(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        patience: &Patience,
    ) -> Result<(), Failure> {
        self.check_thread();
        let node = self.node.as_mut().expect("the exchange is in this node");
        let (mut sending, receiving, around) = node.halves(header, outgoing, incoming);
        sending.progress()?;
        let mut receiving = Beside { half: receiving, flights: &mut self.messages.flights };
        let waiting = Waiting::new(self.spins, patience, &self.roll).for_long();
        complete(&mut sending, &mut receiving, waiting, |other, waiting| around.look(other, waiting))
    }

    /// Begins to exchange messages with a rank of another node: what is sent may change again at once, and is answered by
    /// `size_bytes`. Two ranks begin the exchanges between them in the same order.
    pub(crate) fn depart(
        &mut self,
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
        patience: &Patience,
    ) -> Result<Ticket, Failure> {
        self.check_thread();
        self.messages.depart((self.comm, &self.roll), header, outgoing, size_bytes, patience)
    }

    /// Waits for an exchange that was begun, and takes in what it brought.
    pub(crate) fn arrive(
        &mut self,
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        patience: &Patience,
    ) -> Result<(), Failure> {
        self.check_thread();
        self.messages.arrive((self.comm, &self.roll), header, ticket, target, patience)
    }
}

impl Messages {
    /// Begins to exchange messages with a rank of another node: what is sent may change again at once. What comes back is as long
    /// as what is sent, or as `size_bytes` says.
    ///
    /// The messages of two ranks arrive in the order in which both begin to exchange them.
    pub(super) fn depart(
        &mut self,
        (comm, roll): (Comm, &Roll),
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
        patience: &Patience,
    ) -> Result<Ticket, Failure> {
        let mut waiting = Waiting::new(self.spins, patience, roll);
        let Outgoing { to: with, bytes } = *outgoing;
        let segment = self.link(comm, with).segment;
        let mut listening =
            Listening { comm, roll, header, overheard: &mut self.overheard, gone_since: None };
        let overheard = listening.recall(with, &mut waiting)?;
        let flights = &mut self.flights;
        flights.begun += 1;
        let mut flight = flights.landed.pop().unwrap_or_default();
        (flight.number, flight.with) = (flights.begun, with);
        flight.expected = Some((header.of_size(size_bytes), roll.clone()));
        flight.received_bytes = size_bytes;
        // It is kept before MPI is given any of its memory, and so it stays, whatever fails.
        flights.flying.push_back(flight);
        let flight = flights.flying.back_mut().expect("it was just put there");
        flight.ask(comm, segment, overheard)?;
        flight.give(comm, segment, header, bytes).map_err(Failure::Error)?;
        Ok(Ticket(flight.number))
    }

    /// Waits for an exchange that was begun, and takes in what it brought.
    pub(super) fn arrive(
        &mut self,
        (comm, roll): (Comm, &Roll),
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        patience: &Patience,
    ) -> Result<(), Failure> {
        let flights = &mut self.flights;
        let place = flights.flying.iter().position(|flight| flight.number == ticket.0);
        let place = place.expect("an exchange is waited for once");
        let mut listening =
            Listening { comm, roll, header, overheard: &mut self.overheard, gone_since: None };
        let waiting = Waiting::new(self.spins, patience, roll).for_long();
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

impl Flight {
    fn ask(&mut self, comm: Comm, segment: usize, overheard: Option<Scratch>) -> Result<(), Failure> {
        if let Some(mut message) = overheard {
            self.first_received.copy_of(message.take(FIRST));
            self.check()?;
        } else {
            let first = self.first_received.take(FIRST).as_mut_ptr();
            // SAFETY: the memory is the flight's, which stays where it is while MPI has it: nobody else knows of it, it is used again
            // only when all requests are done, and freed with the communicator, which ends the job if there are any left.
            let request = unsafe { comm.begin_receive(first, FIRST as c_int, self.with, FIRST_TAG) };
            self.receives.push_back(request.map_err(Failure::Error)?);
        }
        for segment in self.received.take(self.received_bytes).chunks_mut(segment) {
            // SAFETY: as above; segments do not overlap.
            let request = unsafe {
                comm.begin_receive(segment.as_mut_ptr(), segment.len() as c_int, self.with, SEGMENT_TAG)
            };
            self.receives.push_back(request.map_err(Failure::Error)?);
        }
        Ok(())
    }

    fn give(&mut self, comm: Comm, segment: usize, header: &Header, bytes: &[u8]) -> Result<()> {
        let first = self.first_sent.copy_of(bytemuck::bytes_of(&header.of_size(bytes.len())));
        let parts = self.sent.copy_of(bytes).chunks(segment).map(|part| (part, SEGMENT_TAG));
        for (part, tag) in std::iter::once((&*first, FIRST_TAG)).chain(parts) {
            // SAFETY: as in `ask`; what is sent is not changed before all requests are done.
            let request = unsafe { comm.begin_send(part.as_ptr(), part.len() as c_int, self.with, tag) }?;
            self.sends.push_back(request);
        }
        Ok(())
    }

    /// Checks that the other rank is in the same collective.
    fn check(&mut self) -> Result<(), Failure> {
        let Some((expected, roll)) = self.expected.take() else { return Ok(()) };
        let theirs = self.first_received.take(size_of::<Header>());
        expected.check(bytemuck::from_bytes(theirs), self.with, &roll)
    }
}

impl Half for Flight {
    fn other(&self) -> Rank {
        self.with
    }

    fn is_done(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        let sent = take_done(&mut self.sends)?;
        let received = take_done(&mut self.receives)?;
        if received {
            self.check()?;
        }
        Ok(sent || received)
    }
}

/// Takes the oldest request away if it is done.
fn take_done(requests: &mut VecDeque<Request>) -> Result<bool, Failure> {
    let Some(oldest) = requests.front_mut() else { return Ok(false) };
    let done = oldest.is_done().map_err(Failure::Error)?;
    if done {
        requests.pop_front();
    }
    Ok(done)
}

/// A half of an exchange inside of a node, which lets MPI work on what is under way while it has nothing to do itself.
pub(super) struct Beside<'a, H> {
    pub(super) half: H,
    pub(super) flights: &'a mut Flights,
}

impl<H: Half> Half for Beside<'_, H> {
    fn other(&self) -> Rank {
        self.half.other()
    }

    fn is_done(&self) -> bool {
        self.half.is_done()
    }

    fn progress(&mut self) -> Result<bool, Failure> {
        if self.half.progress()? {
            return Ok(true);
        }
        self.flights.progress()?;
        Ok(false)
    }
}
