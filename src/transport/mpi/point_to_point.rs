//! Point-to-point messages of the program: over MPI, or through shared memory inside a node.

use unisono_collectives::Rank;

use super::Mpi;
use super::overheard::Listening;
use crate::transport::{Deadlines, Failure, Header, Headers, Incoming, Outgoing};

impl Mpi {
    /// Like [`Mpi::exchange`], for two messages with different headers.
    pub(in crate::transport) fn exchange_two(
        &mut self,
        headers: Headers<'_>,
        outgoing: Outgoing<'_>,
        incoming: Incoming<'_>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        if let Some(tcp) = &self.tcp {
            let over = (self.node.as_mut(), &self.status);
            return tcp.exchange_any(over, headers, Some(outgoing), Some(incoming), deadlines);
        }
        let is_near = |rank| self.node.as_ref().is_some_and(|node| node.has(rank));
        let (to_near, from_near) = (is_near(outgoing.to), is_near(incoming.from));
        match &mut self.node {
            Some(node) if to_near && from_near => {
                node.exchange_any(headers, Some(outgoing), Some(incoming), deadlines)
            }
            _ if to_near != from_near => {
                self.exchange_with_both(headers, (Some(outgoing), to_near), Some(incoming), deadlines)
            }
            _ => {
                self.check_thread();
                let over = (self.comm, &self.status);
                self.messages.exchange(over, headers, Some(outgoing), Some(incoming), deadlines)
            }
        }
    }

    /// The header of the next message from a rank, if it has arrived. `awaited` is the header that this rank expects.
    pub(in crate::transport) fn ahead(
        &mut self,
        from: Rank,
        awaited: &Header,
    ) -> Result<Option<Header>, Failure> {
        if let Some(node) = self.node.as_ref().filter(|node| node.has(from)) {
            return Ok(node.ahead(from).copied());
        }
        if let Some(tcp) = &self.tcp {
            return Ok(tcp.ahead(from));
        }
        self.check_thread();
        let (comm, status, overheard) = (self.comm, &self.status, &mut self.messages.overheard);
        Listening { comm, status, header: awaited, overheard, gone_since: None }.listen()?;
        Ok(self.messages.overheard.oldest(from))
    }

    /// How often this rank polls before it yields.
    pub(in crate::transport) fn spins(&self) -> u32 {
        self.spins
    }
}
