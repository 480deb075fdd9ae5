//! The fabric: messages between ranks, through memory inside a node and over a [`Link`](link::Link) between nodes.
//!
//! It moves bytes between ranks in order, and checks that both ends are in the same collective. It does not depend on schedules, and handles
//! elements only through [`Target`].

use std::ops::Range;
use std::os::fd::OwnedFd;

use unisono_collectives::{Rank, Topology};

use crate::config::{Chaos, Config};
use crate::memory::Registry;
use crate::status::{StatusBoard, panicked};
use crate::system;

mod agreement;
mod assemble;
mod bootstrap;
mod clock;
mod failure;
mod far;
mod faulty;
mod half;
mod header;
mod join;
mod link;
mod message;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
mod network;
mod node;
mod point_to_point;
mod shared;
mod tcp;
#[cfg(feature = "ucx")]
mod ucx;
mod vendor;
mod waiting;
mod warnings;

pub(crate) use bootstrap::{
    Arrival, Arrivals, Joining, LEAST_TO_BEGIN, LONGEST, MAX_TIME, NAP, Peer, REACH, Rendezvous, bind,
    connected_at, first, gather, gather_results, is_displaced, listen, look_up,
};
pub use bootstrap::{Bootstrap, gather_padded};
pub(crate) use failure::Failure;
use far::Far;
use faulty::Faults;
use half::Polled;
pub(crate) use header::{Calls, Header};
pub(crate) use link::FAR_SEGMENT;
use link::Link;
pub(crate) use message::{Incoming, Outgoing, Target};
pub(crate) use node::common;
pub(crate) use point_to_point::{Messages, Options as MessageOptions, Parts, Received, Sent};
/// The longest eager message between ranks that share memory: the sender copies it and continues.
pub(crate) use shared::SHORT as EAGER_BYTES;
use shared::Shared;
pub(crate) use shared::{Open, STAGING_BYTES, Shares};
#[cfg(feature = "ucx")]
pub use ucx::version as ucx_version;
pub(crate) use waiting::{Deadlines, Poll, WaitFailure, Waiting};
use waiting::{spins, usable_cores};

#[derive(Debug)]
pub(crate) struct Fabric {
    rank: Rank,
    topology: Topology,
    name: &'static str,
    node_cores: usize,
    is_oversubscribed: bool,
    /// The number of polls of this rank before it yields.
    spins: u32,
    status: StatusBoard,
    /// Whether this rank has failed and cannot continue.
    has_failed: bool,
    /// The ranks that share memory with this one: threads of one process, or processes of one node.
    node: Option<Shared>,
    /// The messages with all other ranks.
    far: Option<Far>,
    /// The link for point-to-point messages with other nodes, until it is taken.
    messages: Option<Box<dyn Link>>,
    /// The control connections to other nodes, until they are taken.
    controls: Vec<(Rank, OwnedFd)>,
    faults: Option<Box<Faults>>,
    #[cfg(feature = "mpi")]
    mpi: Option<Box<mpi::World>>,
}

impl Fabric {
    /// Returns the fabric of a rank, before it is connected with other nodes. Its node has this number of cores.
    fn new(status: StatusBoard, topology: Topology, node_cores: usize, node: Option<Shared>) -> Self {
        let mut fabric = Self {
            rank: status.rank(),
            topology,
            name: node.as_ref().map_or("", Shared::name),
            node_cores,
            is_oversubscribed: false,
            spins: 0,
            status,
            has_failed: false,
            node,
            far: None,
            messages: None,
            controls: Vec::new(),
            faults: None,
            #[cfg(feature = "mpi")]
            mpi: None,
        };
        fabric.is_oversubscribed = fabric.local_ranks() > node_cores;
        fabric.has_core_to_itself(true);
        fabric
    }

    /// Returns the fabric of ranks that all share memory.
    fn of_node(node: Shared, cores: usize) -> Self {
        let status = node.status.clone();
        let topology = Topology::single_node(status.ranks());
        Self::new(status, topology, cores, Some(node))
    }

    /// Returns the fabrics of a new world of threads.
    pub(crate) fn threads(ranks: usize) -> crate::error::Result<Vec<Self>> {
        assert!(ranks > 0, "a world has at least one rank");
        let (ends, cores) = (Shared::of_process(StatusBoard::of_threads(ranks)?)?, usable_cores());
        Ok(ends.into_iter().map(|node| Self::of_node(node, cores)).collect())
    }

    /// Returns the fabric of a group if MPI connects its ranks. Otherwise a bootstrap connects them. All members call it.
    pub(crate) fn group(&self, members: &[Rank], config: &Config) -> Option<crate::error::Result<Self>> {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            return Some(mpi.group(members, config));
        }
        let _ = (members, config);
        None
    }

    pub(crate) fn has_mpi(&self) -> bool {
        #[cfg(feature = "mpi")]
        return self.mpi.is_some();
        #[cfg(not(feature = "mpi"))]
        false
    }

    /// Injects the requested faults from now on.
    pub(crate) fn inject(&mut self, chaos: Chaos) {
        if self.rank == 0 {
            system::print_line("UNISONO_CHAOS is set: messages are delayed and lost on purpose");
        }
        self.faults = Some(Box::new(Faults::new(self.rank, self.topology.ranks(), chaos)));
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// Returns the number of ranks that share this node, regardless of declared nodes.
    pub(crate) fn local_ranks(&self) -> usize {
        self.topology.node(self.topology.node_of(self.rank)).ranks()
    }

    /// Verifies that threads other than the one that created it may use the fabric.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if MPI does not allow it, with advice.
    pub(crate) fn check_other_threads(&self) -> crate::error::Result<()> {
        #[cfg(feature = "mpi")]
        if let Some(mpi) = &self.mpi {
            return mpi.check_other_threads();
        }
        Ok(())
    }

    /// Makes waits on this thread drive MPI's progress until the result is dropped, if this fabric has MPI.
    #[cfg(feature = "mpi")]
    #[inline]
    pub(crate) fn driven(&self) -> Option<mpi::Driven> {
        self.mpi.as_ref().and_then(|mpi| mpi.driven())
    }

    pub(crate) fn spins(&self) -> u32 {
        self.spins
    }

    /// Sets whether this rank computes only when no message is in flight. Otherwise its two threads may share a core, and the thread that waits for
    /// messages yields at once.
    pub(crate) fn has_core_to_itself(&mut self, alone: bool) {
        let threads = self.local_ranks() * if alone { 1 } else { 2 };
        self.spins = spins(threads, self.node_cores);
        if let Some(node) = &mut self.node {
            node.spins = self.spins;
        }
        if let Some(far) = &mut self.far {
            far.spins = self.spins;
        }
    }

    /// Returns the number of cores available to all ranks of this node together.
    pub(crate) fn node_cores(&self) -> usize {
        self.node_cores
    }

    /// Returns whether a node of the world has more ranks than cores; identical on all ranks.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.is_oversubscribed
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the allocator of registered memory of this rank.
    pub(crate) fn registry(&self) -> Registry {
        self.node.as_ref().map_or(Registry::Threads, |node| node.registry)
    }

    #[inline]
    pub(crate) fn status(&self) -> &StatusBoard {
        &self.status
    }

    /// Sends and receives at the same time; returns when both are done and the sent bytes may change.
    #[inline]
    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        mut outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        if let Some(faults) = &mut self.faults {
            faults.delay();
            outgoing = outgoing.filter(|outgoing| !faults.loses(outgoing.to));
        }
        match (&mut self.node, &mut self.far) {
            (Some(node), None) => node.exchange(header, outgoing, incoming, deadlines),
            (node, Some(far)) => far.exchange(node.as_mut(), header, outgoing, incoming, deadlines),
            (None, None) => unreachable!("a rank that is alone sends no messages"),
        }
    }

    /// Returns whether exchanges can be posted, which are for ranks of other nodes. The result is identical on all ranks.
    pub(crate) fn can_pipeline(&self) -> bool {
        self.far.is_some()
    }

    /// Posts an exchange with ranks of other nodes: sends a copy of the bytes, and receives this number of bytes from a rank. Messages between two
    /// ranks match in the order in which both post them.
    pub(crate) fn post(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<(Rank, usize)>,
    ) -> Result<(), Failure> {
        self.delay();
        self.far.as_mut().expect("there are other nodes").post(header, outgoing, incoming)
    }

    /// Waits for the oldest posted exchange, and consumes the received message, if any.
    pub(crate) fn complete(
        &mut self,
        header: &Header,
        target: Option<&mut Target<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        self.delay();
        self.far.as_mut().expect("there are other nodes").complete(header, target, deadlines)
    }

    /// Delays a call if faults are injected.
    fn delay(&mut self) {
        if let Some(faults) = &mut self.faults {
            faults.delay();
        }
    }

    /// Returns whether cross memory attach works between processes of this node; `None` if no processes share memory.
    pub(crate) fn kernel_copies(&self) -> Option<bool> {
        self.node.as_ref()?.reach.kernel_copies()
    }

    pub(crate) fn is_shared_by(&self, ranks: usize) -> bool {
        self.node.as_ref().is_some_and(|node| node.members.len() == ranks)
    }

    /// Opens this rank's buffer to all ranks, runs `work` on this rank's range of all buffers, and returns when all ranks are done.
    ///
    /// All ranks of a world that [shares memory](Self::is_shared_by) call it with buffers of the same size and identical ranges, which partition the
    /// buffers.
    pub(crate) fn single_pass(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        shares: Shares<impl Fn(Rank) -> Range<usize>>,
        deadlines: &Deadlines,
        work: impl FnOnce(&mut Open<'_>) -> crate::error::Result<()>,
    ) -> Result<(), Failure> {
        self.delay();
        let node = self.node.as_mut().expect("ranks of a single pass share memory");
        node.single_pass(header, buffer, shares, deadlines, work)
    }

    /// Takes this rank's connections with other nodes, over which its guard exchanges states and failures. There are none if a thread with
    /// its own connections does so.
    pub(crate) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        std::mem::take(&mut self.controls)
    }

    /// Marks this rank as failed because of `first`, which may be itself, and informs the other ranks.
    pub(crate) fn fail(&mut self, first: Rank, cause: &str) {
        if std::mem::replace(&mut self.has_failed, true) {
            return;
        }
        if self.has_mpi() && self.status.guard().is_none() {
            system::print_line(&format!("rank {} ends the job: {cause}", self.rank));
        }
        self.status.give_up(first, cause);
    }

    /// Ends the job if a link still holds a buffer that would return to the caller, or a message (`holds_message`).
    pub(crate) fn end_if_stranded(&self, holds_message: bool) {
        if let Some(far) = self.far.as_ref().filter(|far| holds_message || far.is_stranded()) {
            far.end_job();
        }
    }

    /// Notifies the other ranks that this one has left.
    fn leave(&mut self) {
        // The last rank that drops it frees the memory.
        self.node = None;
        self.status.leave(self.rank);
        if self.far.is_some() {
            self.status.exchange_now();
        }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(self.rank, &panicked());
        } else if self.far.as_ref().is_some_and(|far| !far.is_idle()) {
            self.fail(self.rank, "it left a collective before its end");
        }
        #[cfg(feature = "mpi")]
        if let Some(mpi) = self.mpi.take() {
            return mpi.end(self);
        }
        self.leave();
    }
}
