//! Point-to-point messages through shared memory: halves of exchanges that are suspended between polls, so that many are in flight at a
//! time.

use unisono_collectives::Rank;

use super::Shared;
use crate::transport::half::Half as _;
use crate::transport::{Failure, Header, Incoming, Outgoing, Polled, Target};

/// This rank's end of the channels for messages.
#[derive(Debug)]
pub(in crate::transport) struct Line(pub(super) Shared);

impl Line {
    /// Returns whether messages of a rank go through this memory.
    pub(in crate::transport) fn has(&self, rank: Rank) -> bool {
        self.0.has(rank)
    }

    /// Returns the header of the next message from a rank, if it has arrived.
    pub(in crate::transport) fn ahead(&self, from: Rank) -> Option<Header> {
        self.0.ahead(from).copied()
    }

    /// Continues to send a message, of which `given` bytes were sent before. At most one message to each rank is in transit at a time.
    pub(in crate::transport) fn send(
        &mut self,
        header: &Header,
        outgoing: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        let (Some(sending), ..) = self.0.halves(header, Some(outgoing), None) else {
            unreachable!("there is a message")
        };
        let mut sending = sending.resume(*given);
        let moved = sending.progress()?;
        let done = sending.is_done();
        *given = sending.suspend();
        Ok(Polled::of(moved, done))
    }

    /// Withdraws a message that was not received, before its bytes return to their owner.
    pub(in crate::transport) fn withdraw(&mut self, header: &Header, outgoing: Outgoing<'_>, given: usize) {
        if let (Some(sending), ..) = self.0.halves(header, Some(outgoing), None) {
            drop(sending.resume(given));
        }
    }

    /// Continues to receive the next message from a rank, with this header, into a place of its size, of which `taken` bytes are filled.
    pub(in crate::transport) fn receive(
        &mut self,
        header: &Header,
        from: Rank,
        place: &mut [u8],
        taken: &mut usize,
    ) -> Result<Polled, Failure> {
        let incoming = Incoming { from, target: Target::Place(place) };
        let (_, Some(receiving), _) = self.0.halves(header, None, Some(incoming)) else {
            unreachable!("there is a message")
        };
        let mut receiving = receiving.resume(*taken);
        let moved = receiving.progress()?;
        *taken = receiving.taken();
        Ok(Polled::of(moved, receiving.is_done()))
    }
}
