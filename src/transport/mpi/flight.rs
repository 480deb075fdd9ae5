//! A posted exchange, with its own buffers.

use std::collections::VecDeque;
use std::ffi::c_int;

use unisono_collectives::Rank;

use super::sys::{Comm, Request};
use super::wire::{FIRST, FIRST_TAG, SEGMENT_TAG};
use crate::error::Result;
use crate::memory::Scratch;
use crate::status::StatusBoard;
use crate::transport::half::Half;
use crate::transport::{Failure, Header};

/// Posted exchanges, oldest first.
#[derive(Debug, Default)]
pub(super) struct Flights {
    pub(super) begun: u64,
    pub(super) flying: VecDeque<Flight>,
    /// The buffers of completed exchanges, for reuse.
    pub(super) landed: Vec<Flight>,
}

/// One exchange: a message to a rank, and one from it.
#[derive(Debug, Default)]
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) with: Rank,
    /// The expected header of the first message, and the status board, which knows label names.
    pub(super) expected: Option<(Header, StatusBoard)>,
    /// First messages contain only a header.
    first_sent: Scratch,
    first_received: Scratch,
    sent: Scratch,
    pub(super) received: Scratch,
    pub(super) received_bytes: usize,
    /// Oldest first; the first receive is that of the first message.
    sends: VecDeque<Request>,
    receives: VecDeque<Request>,
}

impl Flights {
    /// Whether MPI holds none of the buffers.
    pub(super) fn are_none(&self) -> bool {
        self.flying.is_empty()
    }

    /// Drives MPI's progress on posted exchanges, from inside another wait.
    pub(super) fn progress(&mut self) -> Result<(), Failure> {
        // Testing any request makes MPI progress on all of them.
        let unfinished = self.flying.iter_mut().find(|flight| !flight.is_done());
        unfinished.map_or(Ok(()), |flight| flight.progress().map(drop))
    }
}

impl Flight {
    /// Posts the receives of the other rank's message.
    pub(super) fn ask(
        &mut self,
        comm: Comm,
        segment: usize,
        overheard: Option<Scratch>,
    ) -> Result<(), Failure> {
        if let Some(mut message) = overheard {
            self.first_received.copy_of(message.take(FIRST)).map_err(Failure::Error)?;
            self.check()?;
        } else {
            let first = self.first_received.take(FIRST).as_mut_ptr();
            // SAFETY: the memory is the flight's, which stays where it is while MPI has it: nobody else knows of it, it is used again
            // only when all requests are done, and freed with the communicator, which ends the job if there are any left.
            let request = unsafe { comm.begin_receive(first, FIRST as c_int, self.with, FIRST_TAG) };
            self.receives.push_back(request.map_err(Failure::Error)?);
        }
        let received = self.received.reserve(self.received_bytes).map_err(Failure::Error)?;
        for segment in received.chunks_mut(segment) {
            // SAFETY: as above; segments do not overlap.
            let request = unsafe {
                comm.begin_receive(segment.as_mut_ptr(), segment.len() as c_int, self.with, SEGMENT_TAG)
            };
            self.receives.push_back(request.map_err(Failure::Error)?);
        }
        Ok(())
    }

    /// Posts the sends of a copy of these bytes.
    pub(super) fn give(&mut self, comm: Comm, segment: usize, header: &Header, bytes: &[u8]) -> Result<()> {
        let first = self.first_sent.copy_of(bytemuck::bytes_of(&header.of_size(bytes.len())))?;
        let parts = self.sent.copy_of(bytes)?.chunks(segment).map(|part| (part, SEGMENT_TAG));
        for (part, tag) in std::iter::once((&*first, FIRST_TAG)).chain(parts) {
            // SAFETY: as in `ask`; what is sent is not changed before all requests are done.
            let request = unsafe { comm.begin_send(part.as_ptr(), part.len() as c_int, self.with, tag) }?;
            self.sends.push_back(request);
        }
        Ok(())
    }

    /// Checks that the other rank is in the same collective.
    fn check(&mut self) -> Result<(), Failure> {
        let Some((expected, status)) = self.expected.take() else { return Ok(()) };
        let theirs = self.first_received.take(size_of::<Header>());
        expected.check(bytemuck::from_bytes(theirs), self.with, &status)
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

/// Removes the oldest request if it is done.
pub(super) fn take_done(requests: &mut VecDeque<Request>) -> Result<bool, Failure> {
    let Some(oldest) = requests.front_mut() else { return Ok(false) };
    let done = oldest.is_done().map_err(Failure::Error)?;
    if done {
        requests.pop_front();
    }
    Ok(done)
}
