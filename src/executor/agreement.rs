//! The check that all ranks make the same call, before a vendor's collective.

use unisono_collectives::program::Place;
use unisono_collectives::{Algorithm, Operation, Rank, Schedule, Topology};

use super::Task;
use crate::error::Result;
use crate::transport::{Fabric, Incoming, Outgoing, Target};

/// The steps by which a rank hears, directly or indirectly, from every other rank. Their messages are empty, so the chunks do
/// not matter.
pub(crate) fn agreement(rank: Rank, ranks: usize) -> Schedule {
    let plan = Algorithm::RecursiveDoubling.plan(Operation::AllReduce, &Topology::single_node(ranks), rank);
    plan.expect("every algorithm offers all-reduce").flattened()
}

impl Task<'_> {
    /// Checks that all ranks make the same call: vendors do not, and would hang or reduce unrelated data.
    pub(crate) fn agree(&self, transport: &mut Fabric) -> Result<()> {
        let header = self.header;
        for (number, step) in self.agreement.steps().iter().enumerate() {
            let outgoing = step.send.map(|send| Outgoing { to: send.to, bytes: &[] });
            let incoming =
                step.receive.map(|receive| Incoming { from: receive.from, target: Target::Place(&mut []) });
            transport.exchange(header, outgoing, incoming, self.deadlines).map_err(|failure| {
                self.error(failure, transport, Place { name: "agreement", phase: 0, step: number })
            })?;
        }
        Ok(())
    }
}
