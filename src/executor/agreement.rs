//! The check that all ranks make the same call, before a vendor's collective.

use unisono_collectives::algorithm::recursive_doubling;
use unisono_collectives::program::Place;

use super::Task;
use crate::error::Result;
use crate::transport::{Fabric, Incoming, Outgoing, Target};

/// Returns the place of a step of the agreement, for errors.
fn at(step: usize) -> Place {
    Place { name: "agreement", phase: 0, step }
}

impl Task<'_> {
    /// Checks that all ranks make the same call. Vendors do not check it, and would hang or reduce unrelated data.
    pub(crate) fn agree(&self, transport: &mut Fabric) -> Result<()> {
        let header = self.header;
        // A rank then has a message, directly or indirectly, from every other rank. Messages are empty, so the chunks do not matter.
        let schedule = recursive_doubling::all_reduce(transport.rank(), transport.topology().ranks());
        for (number, step) in schedule.steps().iter().enumerate() {
            let outgoing = step.send.map(|send| Outgoing { to: send.to, bytes: &[] });
            let incoming =
                step.receive.map(|receive| Incoming { from: receive.from, target: Target::Place(&mut []) });
            transport
                .exchange(header, outgoing, incoming, self.deadlines)
                .map_err(|failure| self.error(failure, transport, at(number)))?;
        }
        Ok(())
    }

    /// Announces the call with a hash of all calls up to it, and checks that no rank of this status board announces a different one at this
    /// position. It waits for a slower rank only if this rank would be too far ahead of it.
    ///
    /// If the calls of two ranks differ, at least one of them returns the error, before it calls the vendor.
    #[cfg(feature = "nccl")]
    pub(crate) fn announce(&self, history: u64, transport: &Fabric) -> Result<()> {
        use crate::status::LEAD;
        use crate::transport::{Failure, Poll, Waiting};

        let status = transport.status();
        let others = status.members().iter().enumerate().filter(|(_, rank)| **rank != status.rank());
        let next = status.lockstep(status.position()).announced() + 1;
        for (position, &other) in others.clone() {
            let is_behind = || status.lockstep(position).announced() + LEAD < next;
            let poll = || Ok(if is_behind() { Poll::WaitsFor(other) } else { Poll::Done(()) });
            let left = |other, _: &Waiting<'_>| Failure::left(other, status).map_or(Ok(()), Err);
            Waiting::new(0, self.deadlines, status)
                .until(poll, left)
                .map_err(|failure| self.error(failure, transport, at(0)))?;
        }
        let number = status.lockstep(status.position()).announce(history);
        match others.clone().find(|(position, _)| !status.lockstep(*position).agrees(number, history)) {
            None => Ok(()),
            Some((_, &other)) => Err(self.error(self.header.mismatch_with(other, status), transport, at(0))),
        }
    }
}
