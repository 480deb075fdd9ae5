//! All ranks see that they are in the same call, before vendors do.

use unisono_collectives::{Algorithm, Operation, Rank, Schedule, Topology};

use super::Task;
use crate::error::Result;
use crate::transport::{Incoming, Outgoing, Target, Transport};

/// The steps by which a rank of so many sees that all are in the same call: after them each has heard, in a chain of messages, of
/// every other. Their chunks do not matter; the messages are empty.
pub(crate) fn agreement(rank: Rank, ranks: usize) -> Schedule {
    let plan = Algorithm::RecursiveDoubling.plan(Operation::AllReduce, &Topology::single_node(ranks), rank);
    plan.expect("every algorithm offers all-reduce").flattened()
}

#[cfg_attr(not(any(feature = "mpi", feature = "nccl")), allow(dead_code, reason = "there are no vendors"))]
impl Task<'_> {
    /// Makes sure that all ranks are in the same call: vendors do not look, and would wait for ever or add up what does not
    /// belong together.
    pub(crate) fn agree(&self, transport: &mut Transport) -> Result<()> {
        let header = self.header;
        for (number, step) in self.agreement.steps().iter().enumerate() {
            let outgoing = step.send.map(|send| Outgoing { to: send.to, bytes: &[] });
            let incoming =
                step.receive.map(|receive| Incoming { from: receive.from, target: Target::Place(&mut []) });
            transport
                .exchange(&header, outgoing, incoming, self.deadlines)
                .map_err(|failure| self.error(failure, transport, "agreement", number))?;
        }
        Ok(())
    }
}
