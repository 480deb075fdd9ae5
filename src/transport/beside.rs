//! Non-blocking exchanges with other nodes: posted now, completed later.

#![cfg_attr(
    not(feature = "mpi"),
    allow(clippy::only_used_in_recursion, reason = "there is no MPI to be given it")
)]

use super::{Deadlines, Failure, Header, Outgoing, Target, Transport};

/// The number of a posted exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(pub(super) u64);

impl Transport {
    /// Whether exchanges with other nodes can be posted. The same on all `ranks` ranks.
    pub(crate) fn has_lanes(&self, ranks: usize) -> bool {
        match self {
            Self::Shared(_) => false,
            Self::Nodes(_) => !self.is_shared_by(ranks),
            #[cfg(feature = "mpi")]
            Self::Mpi(_) => !self.is_shared_by(ranks),
            Self::Faulty(faulty) => faulty.inner.has_lanes(ranks),
        }
    }

    /// Posts an exchange with a rank of another node, if there are lanes: sends a copy of the bytes and receives `size_bytes`.
    /// Both ranks post the exchanges between them in the same order.
    pub(crate) fn post(
        &mut self,
        header: &Header,
        outgoing: &Outgoing<'_>,
        size_bytes: usize,
        deadlines: &Deadlines,
    ) -> Result<Ticket, Failure> {
        match self {
            Self::Shared(_) => unreachable!("ranks that all share memory are on one node"),
            Self::Nodes(nodes) => nodes.post(header, outgoing, size_bytes),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.post(header, outgoing, size_bytes, deadlines),
            Self::Faulty(faulty) => {
                faulty.faults.delay();
                faulty.inner.post(header, outgoing, size_bytes, deadlines)
            }
        }
    }

    /// Waits for a posted exchange and consumes what it received.
    pub(crate) fn complete(
        &mut self,
        header: &Header,
        ticket: Ticket,
        target: &mut Target<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        match self {
            Self::Shared(_) => unreachable!("nothing was posted"),
            Self::Nodes(nodes) => nodes.complete(header, ticket, target, deadlines),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.complete(header, ticket, target, deadlines),
            Self::Faulty(faulty) => {
                faulty.faults.delay();
                faulty.inner.complete(header, ticket, target, deadlines)
            }
        }
    }
}
