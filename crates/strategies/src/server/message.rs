//! The messages between a worker and a server. The worker sends a request, and the server replies. Values and gradients follow some messages.

use bytemuck::{CheckedBitPattern, NoUninit, bytes_of, checked};
use unisono::{Bootstrap, Communicator, Rank, Result, Topology, Unisono};

use unisono_train::LossSums;

/// The ranks of both sides in the world of a link.
pub(super) const SERVER: usize = 0;
pub(super) const CLIENT: usize = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, NoUninit, CheckedBitPattern)]
#[repr(u64)]
pub(super) enum Kind {
    /// Requests the next task from the coordinator. The other servers send no reply.
    #[default]
    Ask,
    /// Reports to the coordinator that a share is computed, and applied by all servers.
    Trained,
    /// Reports the results of an evaluation batch to the coordinator.
    Evaluated,
    /// Requests the values of a server's buckets, which follow in the order of the forward pass.
    Pull,
    /// Announces the gradients of a server's buckets, which follow in the order of the backward pass. The server replies.
    Push,
    /// Announces the state to restore on a server, which follows. Sent by the coordinator. The server replies.
    Restore,
    /// Requests the complete state of a server.
    Read,
    /// Ends the link.
    Leave,
    /// Reply: repeat the request.
    Wait,
    /// Reply: compute a share.
    Train,
    /// Reply: evaluate a batch.
    Evaluate,
    /// Reply: done.
    Done,
}

/// A message. Each kind uses only some of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Default, NoUninit, CheckedBitPattern)]
#[repr(C)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Whether the sender was asked to stop. In the report of a share: whether a server was. At the end of the run (`Done` to a worker, `Leave` to a
    /// server): whether the run has stopped.
    pub(super) asks_to_stop: u64,
    /// The epoch, from 1, and the step in the epoch, from 0. In an evaluation: the number of steps made in the epoch.
    pub(super) epoch: u64,
    pub(super) step: u64,
    /// The number of a share or of an evaluation batch.
    pub(super) number: u64,
    /// In an evaluation: the number of shares applied before it.
    pub(super) applied: u64,
    pub(super) rate: f64,
    pub(super) tally: LossSums,
    /// In a reply to gradients, and in the report of their share: the parameter that is no longer finite, counted from 1, or 0. Then its largest
    /// magnitude, and the server.
    pub(super) spoiled: u64,
    pub(super) largest: f64,
    pub(super) server: u64,
    /// In the report of a share: a parameter without a gradient that was not reported before, counted from 1, or 0.
    pub(super) without: u64,
    /// The time that the worker waited for servers, and for data, in seconds.
    pub(super) waited: f64,
    pub(super) input: f64,
}

impl Message {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }
}

/// One side of a link between a server and a worker, or the coordinator. A link is a world of two ranks, whose failure affects no other world.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) comm: Communicator,
}

impl Link {
    pub(super) fn other(&self) -> usize {
        if self.comm.rank() == SERVER { CLIENT } else { SERVER }
    }

    pub(super) fn send(&mut self, message: Message) -> Result<()> {
        self.comm.send(bytes_of(&message), self.other())
    }

    pub(super) fn receive(&mut self) -> Result<Message> {
        let mut bytes = [0; size_of::<Message>()];
        self.comm.receive(&mut bytes, self.other())?;
        Ok(checked::pod_read_unaligned(&bytes))
    }
}

/// Creates a link between two ranks of a world. Called by both ranks; `server` is the first rank of the link. A failure of the link affects nothing
/// else.
pub(super) fn link(comm: &mut Communicator, server: Rank, client: Rank) -> Result<Link> {
    let (place, other) = if comm.rank() == server { (SERVER, client) } else { (CLIENT, server) };
    let topology = comm.topology();
    let share_a_node = topology.node_of(server) == topology.node_of(client);
    let nodes: &[usize] = if share_a_node { &[2] } else { &[1, 1] };
    let builder = Unisono::builder().nodes(Topology::from_node_sizes(nodes)).unobserved();
    let comm = builder.processes_over(&mut Between { comm, place, other })?;
    Ok(Link { comm })
}

/// The bootstrap of a link, over messages of the world.
struct Between<'a> {
    comm: &'a mut Communicator,
    /// The rank of this side in the link.
    place: Rank,
    /// The rank of the other side in the world.
    other: Rank,
}

impl Bootstrap for Between<'_> {
    fn rank(&self) -> Rank {
        self.place
    }

    fn ranks(&self) -> usize {
        2
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let Self { comm, place, other } = self;
        let mut size = [0_u64];
        comm.exchange(&[own.len() as u64], *other, &mut size, *other)?;
        let mut theirs = vec![0; size[0] as usize];
        comm.exchange(own, *other, &mut theirs, *other)?;
        let mut all = vec![theirs];
        all.insert(*place, own.to_vec());
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_an_unknown_kind_is_refused() {
        let sent = Message { rate: 0.5, ..Message::new(Kind::Done) };
        let mut bytes = bytes_of(&sent).to_vec();
        assert_eq!(checked::try_pod_read_unaligned(&bytes), Ok(sent));
        bytes[0] = 12;
        assert!(checked::try_pod_read_unaligned::<Message>(&bytes).is_err());
    }
}
