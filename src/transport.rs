//! Transports: how messages get from rank to rank; one file each.
//!
//! A transport moves bytes between ranks in order, and checks that both ends are in the same collective. It knows nothing of
//! schedules, and of elements only what [`Target`] does with them.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::{Rank, Topology};

use crate::config::{Chaos, Config};
use crate::error::{Error, Place};
use crate::memory::Registry;
use crate::status::{FailureReport, StatusBoard};

mod agreement;
mod beside;
mod bootstrap;
mod counters;
mod faulty;
mod half;
mod header;
mod join;
mod message;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
mod node;
mod nodes;
mod point_to_point;
mod processes;
mod shared;
mod tcp;
mod vendor;
mod waiting;
mod warnings;

pub(crate) use beside::Ticket;
#[cfg(not(feature = "mpi"))]
pub(crate) use bootstrap::Alone;
pub use bootstrap::Bootstrap;
pub(crate) use bootstrap::{Directory, Joining, Rendezvous};
use faulty::Faulty;
use half::Polled;
pub(crate) use header::{Calls, Header};
pub(crate) use message::{FAR_SEGMENT, Incoming, Outgoing, Target};
use nodes::Nodes;
pub(crate) use point_to_point::{Messages, Options as MessageOptions, Parts, Received, Sent};
/// The longest eager message between ranks that share memory: the sender copies it and continues.
pub(crate) use shared::SHORT as EAGER_BYTES;
use shared::Shared;
pub(crate) use shared::{Open, Shares};
pub(crate) use vendor::VendorPhase;
pub(crate) use waiting::{Deadlines, Hopeless, Waiting};
use waiting::{Nap, spins, usable_cores};

/// Why an exchange failed; the executor adds the position.
#[derive(Debug)]
pub(crate) enum Failure {
    Timeout { other: Rank, waited: Duration },
    Mismatch { ours: String, other: Rank, theirs: String },
    Left { other: Rank },
    Error(Error),
}

impl Failure {
    /// The failure if a rank that this one waits for has left. Messages that it sent before still count.
    fn left(other: Rank, status: &StatusBoard) -> Option<Self> {
        status.has_left(other).then_some(Self::Left { other })
    }

    /// The error of this failure at a position, with what the status board shows of a rank that did not arrive.
    pub(crate) fn at(self, at: Place, status: &StatusBoard) -> Error {
        let at = Box::new(at);
        match self {
            Self::Timeout { other, waited } => {
                let doing = status.position_of(other).map(|position| Box::new(status.doing(position)));
                Error::Timeout { at, other, waited, doing }
            }
            Self::Mismatch { ours, other, theirs } => Error::Mismatch { at, ours, other, theirs },
            Self::Left { other } => Error::Left { at, other },
            Self::Error(error) => error,
        }
    }
}

/// The transport of a communicator.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Ranks that share memory: threads of one process, or processes of one node.
    Shared(Box<Shared>),
    /// Ranks that are processes of several nodes, without MPI.
    Nodes(Box<Nodes>),
    /// Ranks that are processes under an MPI launcher; those of a node share memory if possible.
    #[cfg(feature = "mpi")]
    Mpi(Box<mpi::Mpi>),
    /// Either of these, with injected faults.
    Faulty(Box<Faulty>),
}

impl Transport {
    /// The transports of a new world of threads.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub(crate) fn threads(ranks: usize) -> crate::error::Result<Vec<Self>> {
        assert!(ranks > 0, "a world has at least one rank");
        let cores = usable_cores();
        let ends = Shared::world_of_threads(ranks, (spins(ranks, cores), cores))?;
        Ok(ends.into_iter().map(|end| Self::Shared(Box::new(end))).collect())
    }

    /// The transport of a world of processes without MPI, and the settings that all of them share. All ranks
    /// call it, including one with invalid settings, since the others wait for it.
    ///
    /// # Errors
    /// [`Error::Launch`] if they cannot share memory or connect, or the bootstrap fails; [`Error::Setting`], on
    /// all ranks, for settings that are invalid or differ.
    pub(crate) fn processes(
        bootstrap: &mut dyn Bootstrap,
        config: crate::error::Result<Config>,
    ) -> crate::error::Result<(Self, Config)> {
        processes::begin(bootstrap, config)
    }

    /// The transport of a group, if MPI connects its ranks; otherwise a bootstrap does. All members call it.
    #[cfg_attr(not(feature = "mpi"), allow(clippy::unused_self, reason = "there is no MPI"))]
    pub(crate) fn group(&mut self, members: &[Rank], config: &Config) -> Option<crate::error::Result<Self>> {
        match self {
            Self::Shared(_) | Self::Nodes(_) => {
                let _ = (members, config);
                None
            }
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => Some(mpi.group(members, config).map(|group| Self::Mpi(Box::new(group)))),
            Self::Faulty(faulty) => faulty.inner.group(members, config),
        }
    }

    /// Whether MPI is initialised under this transport.
    pub(crate) fn has_mpi(&self) -> bool {
        match self {
            Self::Shared(_) | Self::Nodes(_) => false,
            #[cfg(feature = "mpi")]
            Self::Mpi(_) => true,
            Self::Faulty(faulty) => faulty.inner.has_mpi(),
        }
    }

    /// Wraps the transport with the requested faults.
    pub(crate) fn with_faults(self, chaos: Option<Chaos>) -> Self {
        match chaos {
            Some(chaos) => Self::Faulty(Box::new(Faulty::new(self, chaos))),
            None => self,
        }
    }

    /// The name in tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Shared(shared) => shared.name(),
            Self::Nodes(nodes) => nodes.name(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.name(),
            Self::Faulty(faulty) => faulty.inner.name(),
        }
    }

    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Shared(shared) => shared.rank(),
            Self::Nodes(nodes) => nodes.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.rank(),
            Self::Faulty(faulty) => faulty.inner.rank(),
        }
    }

    /// The number of ranks that really share this node, whatever nodes were declared.
    pub(crate) fn local_ranks(&self) -> usize {
        match self {
            Self::Shared(shared) => shared.members().len(),
            Self::Nodes(nodes) => on_node_of(nodes.topology(), nodes.rank()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => on_node_of(mpi.topology(), mpi.rank()),
            Self::Faulty(faulty) => faulty.inner.local_ranks(),
        }
    }

    /// Whether threads other than the one that created it may use the transport.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if MPI does not allow it, with what to do.
    pub(crate) fn check_other_threads(&self) -> crate::error::Result<()> {
        match self {
            Self::Shared(_) | Self::Nodes(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.check_other_threads(),
            Self::Faulty(faulty) => faulty.inner.check_other_threads(),
        }
    }

    /// Sets whether this rank computes only when nothing is in flight. If not, its two threads may share a core, and the one
    /// that waits for messages yields at once.
    pub(crate) fn has_core_to_itself(&mut self, alone: bool) {
        let threads = self.local_ranks() * if alone { 1 } else { 2 };
        let spins = spins(threads, self.node_cores());
        match self {
            Self::Shared(shared) => shared.set_spins(spins),
            Self::Nodes(nodes) => nodes.set_spins(spins),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.set_spins(spins),
            Self::Faulty(faulty) => faulty.inner.has_core_to_itself(alone),
        }
    }

    /// The number of cores available to all ranks of this node together.
    pub(crate) fn node_cores(&self) -> usize {
        match self {
            Self::Shared(shared) => shared.cores(),
            Self::Nodes(nodes) => nodes.node_cores(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.node_cores(),
            Self::Faulty(faulty) => faulty.inner.node_cores(),
        }
    }

    /// The nodes of all ranks, as far as this transport knows.
    pub(crate) fn topology(&self) -> Topology {
        match self {
            Self::Shared(shared) => Topology::single_node(shared.members().len()),
            Self::Nodes(nodes) => nodes.topology().clone(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.topology().clone(),
            Self::Faulty(faulty) => faulty.inner.topology(),
        }
    }

    /// The allocator of registered memory of this rank.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        match self.shared() {
            Some(shared) => Arc::clone(shared.registry()),
            None => Registry::of_threads(),
        }
    }

    /// The state that the ranks of this node publish to each other.
    #[inline]
    pub(crate) fn status(&self) -> &StatusBoard {
        match self {
            Self::Shared(shared) => shared.status(),
            Self::Nodes(nodes) => nodes.status(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.status(),
            Self::Faulty(faulty) => faulty.inner.status(),
        }
    }

    /// The shared-memory transport among the ranks of this node.
    fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Shared(shared) => Some(shared),
            Self::Nodes(nodes) => nodes.shared(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared(),
            Self::Faulty(faulty) => faulty.inner.shared(),
        }
    }

    /// Sends and receives at the same time; returns when both are done and the sent bytes may change.
    #[inline]
    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        deadlines: &Deadlines,
    ) -> Result<(), Failure> {
        match self {
            Self::Shared(shared) => shared.exchange(header, outgoing, incoming, deadlines),
            Self::Nodes(nodes) => nodes.exchange(header, outgoing, incoming, deadlines),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.exchange(header, outgoing, incoming, deadlines),
            Self::Faulty(faulty) => {
                faulty.faults.delay();
                let outgoing = outgoing.filter(|outgoing| !faulty.faults.loses(outgoing.to));
                faulty.inner.exchange(header, outgoing, incoming, deadlines)
            }
        }
    }

    /// Whether cross memory attach works between processes of this node; `None` if none share memory.
    pub(crate) fn kernel_copies(&self) -> Option<bool> {
        match self {
            Self::Shared(shared) => shared.kernel_copies(),
            Self::Nodes(nodes) => nodes.shared().and_then(Shared::kernel_copies),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared().and_then(Shared::kernel_copies),
            Self::Faulty(faulty) => faulty.inner.kernel_copies(),
        }
    }

    /// Whether all `ranks` ranks of the world share memory.
    pub(crate) fn is_shared_by(&self, ranks: usize) -> bool {
        self.shared().is_some_and(|shared| shared.members().len() == ranks)
    }

    /// Opens this rank's buffer to all ranks, lets `work` work on this rank's range of all buffers, and returns when all ranks
    /// are done with theirs.
    ///
    /// All ranks of a world that [shares memory](Self::is_shared_by) call it with buffers of the same size and with the same
    /// ranges, which partition them.
    pub(crate) fn single_pass(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        shares: Shares<impl Fn(Rank) -> Range<usize>>,
        deadlines: &Deadlines,
        work: impl FnOnce(&mut Open<'_>) -> crate::error::Result<()>,
    ) -> Result<(), Failure> {
        let shared = match self {
            Self::Shared(shared) => Some(&mut **shared),
            Self::Nodes(nodes) => nodes.shared_mut(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared_mut(),
            Self::Faulty(faulty) => {
                faulty.faults.delay();
                return faulty.inner.single_pass(header, buffer, shares, deadlines, work);
            }
        };
        shared
            .expect("ranks of a single pass share memory")
            .single_pass(header, buffer, shares, deadlines, work)
    }

    /// The connections of this rank with those of other nodes, over which whoever watches over it exchanges states and failures;
    /// none where a thread does, which has its own.
    pub(crate) fn take_controls(&mut self) -> Vec<(Rank, OwnedFd)> {
        match self {
            Self::Shared(_) => Vec::new(),
            Self::Nodes(nodes) => nodes.take_controls(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.take_controls(),
            Self::Faulty(faulty) => faulty.inner.take_controls(),
        }
    }

    /// Sets the failure report of this rank.
    pub(crate) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        match self {
            Self::Shared(shared) => shared.set_failure_report(report),
            Self::Nodes(nodes) => nodes.set_failure_report(report),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.set_failure_report(report),
            Self::Faulty(faulty) => faulty.inner.set_failure_report(report),
        }
    }

    /// Marks this rank as failed because of `first`, which may be itself, and informs the other ranks.
    pub(crate) fn fail(&mut self, first: Rank, cause: &str) {
        match self {
            Self::Shared(shared) => shared.fail(first, cause),
            Self::Nodes(nodes) => nodes.fail(first, cause),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.fail(first, cause),
            Self::Faulty(faulty) => faulty.inner.fail(first, cause),
        }
    }

    /// Ends the job if MPI still holds a buffer that would return to the caller, or a message (`holds_message`).
    #[cfg_attr(not(feature = "mpi"), allow(clippy::only_used_in_recursion, reason = "there is no MPI"))]
    pub(crate) fn end_if_stranded(&self, holds_message: bool) {
        match self {
            Self::Shared(_) | Self::Nodes(_) => {}
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.end_if_stranded(holds_message),
            Self::Faulty(faulty) => faulty.inner.end_if_stranded(holds_message),
        }
    }
}

/// The number of ranks on the node of a rank.
fn on_node_of(topology: &Topology, rank: Rank) -> usize {
    topology.node(topology.node_of(rank)).ranks()
}
