//! Point-to-point messages through shared memory: halves of exchanges that are suspended between polls, so that many are in flight at a
//! time.

use unisono_collectives::Rank;

use super::{Sending, Shared};
use crate::transport::half::Half as _;
use crate::transport::{Failure, Header, Incoming, Outgoing, Polled, Target};

impl Shared {
    /// Continues to send a message, of which `given` bytes were sent before. At most one message to each rank is in transit at a time.
    pub(in crate::transport) fn send(
        &mut self,
        header: &Header,
        outgoing: Outgoing<'_>,
        given: &mut usize,
    ) -> Result<Polled, Failure> {
        let mut sending = self.resume(header, outgoing, *given);
        let polled = sending.progress()?;
        *given = sending.suspend();
        Ok(polled)
    }

    /// Withdraws a message that was not received, before its bytes return to their owner.
    pub(in crate::transport) fn withdraw(&mut self, header: &Header, outgoing: Outgoing<'_>, given: usize) {
        drop(self.resume(header, outgoing, given));
    }

    fn resume<'a>(&'a mut self, header: &'a Header, outgoing: Outgoing<'a>, given: usize) -> Sending<'a> {
        let ((_, sending), _) = self.halves(header, Some(outgoing), None);
        sending.expect("there is a message").resume(given)
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
        let ((receiving, _), _) = self.halves(header, None, Some(incoming));
        let mut receiving = receiving.expect("there is a message");
        receiving.taken = *taken;
        let polled = receiving.progress()?;
        *taken = receiving.taken;
        Ok(polled)
    }
}
