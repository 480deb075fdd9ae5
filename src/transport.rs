//! How a step's messages get from rank to rank: a closed menu, one file each.
//!
//! A transport moves bytes between ranks, in order, and checks that both ends are in the same collective.
//! It knows nothing of schedules, and of elements only what [`Target`] does with them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::{Rank, Topology};

use crate::config::Chaos;
use crate::error::{Error, Place};
use crate::kernels::Kernel;
use crate::memory::Registry;
use crate::status::{FailureReport, Roll};

mod faulty;
mod half;
mod header;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
mod shared;
mod waiting;

use faulty::Faulty;
pub(crate) use header::{Calls, Header};
/// The longest message that is eager between ranks that share memory: it is copied at once, and its sender goes on.
pub(crate) use shared::SHORT as EAGER_BYTES;
use shared::Shared;
pub(crate) use shared::{Open, Shares};
#[cfg(feature = "nccl")]
pub(crate) use waiting::Hopeless;
pub(crate) use waiting::{Patience, Waiting};
use waiting::{spins, usable_cores};

/// Bytes for another rank.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) to: Rank,
    pub(crate) bytes: &'a [u8],
}

/// Where bytes from another rank go.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    pub(crate) from: Rank,
    pub(crate) target: Target<'a>,
}

/// What happens to bytes that arrive. They may arrive in several pieces of whole elements.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// They take the place of what is here, as they are.
    Place(&'a mut [u8]),
    /// A kernel works them into what is held.
    Apply {
        held: &'a mut [u8],
        /// The size of an element that is held.
        held_size_bytes: usize,
        /// The size of an element that arrives.
        wire_size_bytes: usize,
        kernel: Kernel,
    },
}

impl Target<'_> {
    /// How many bytes must arrive.
    pub(crate) fn size_bytes(&self) -> usize {
        match self {
            Self::Place(place) => place.len(),
            Self::Apply { held, held_size_bytes, wire_size_bytes, .. } => {
                held.len() / held_size_bytes * wire_size_bytes
            }
        }
    }

    /// Takes in the piece that begins `offset_bytes` after the first byte.
    pub(crate) fn accept(&mut self, offset_bytes: usize, piece: &[u8]) {
        match self {
            Self::Place(place) => place[offset_bytes..offset_bytes + piece.len()].copy_from_slice(piece),
            Self::Apply { held, held_size_bytes, wire_size_bytes, kernel } => {
                let held_at = |wire_bytes: usize| wire_bytes / *wire_size_bytes * *held_size_bytes;
                kernel(&mut held[held_at(offset_bytes)..held_at(offset_bytes + piece.len())], piece);
            }
        }
    }
}

/// Why an exchange did not succeed; the executor knows where that was.
#[derive(Debug)]
pub(crate) enum Failure {
    Timeout { other: Rank, waited: Duration },
    Mismatch { ours: String, other: Rank, theirs: String },
    Left { other: Rank },
    Error(Error),
}

impl Failure {
    /// The same as an error, with the place where it happened, and what the roll says of a rank that did not come.
    pub(crate) fn at(self, at: Place, roll: &Roll) -> Error {
        let at = Box::new(at);
        match self {
            Self::Timeout { other, waited } => {
                let doing = roll.position_of(other).map(|position| Box::new(roll.doing(position)));
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
    /// Ranks that are threads of one process.
    Threads(Box<Shared>),
    /// Ranks that are processes under an MPI launcher; those of a node share memory where they can.
    #[cfg(feature = "mpi")]
    Mpi(Box<mpi::Mpi>),
    /// One of those, with faults.
    Faulty(Box<Faulty>),
}

impl Transport {
    /// All ends of a new world of threads.
    ///
    /// # Panics
    /// If the world is to have no rank.
    pub(crate) fn threads(ranks: usize) -> crate::error::Result<Vec<Self>> {
        assert!(ranks > 0, "a world has at least one rank");
        let ends = Shared::world_of_threads(ranks, spins(ranks, usable_cores()))?;
        Ok(ends.into_iter().map(|end| Self::Threads(Box::new(end))).collect())
    }

    /// The same with the faults that were asked for.
    pub(crate) fn with_faults(self, chaos: Option<Chaos>) -> Self {
        match chaos {
            Some(chaos) => Self::Faulty(Box::new(Faulty::new(self, chaos))),
            None => self,
        }
    }

    /// The same without faults.
    pub(crate) fn sound(&mut self) -> &mut Self {
        match self {
            Self::Faulty(faulty) => &mut faulty.inner,
            sound => sound,
        }
    }

    /// The name in every table.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Threads(_) => "threads",
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.name(),
            Self::Faulty(faulty) => faulty.inner.name(),
        }
    }

    #[inline]
    pub(crate) fn rank(&self) -> Rank {
        match self {
            Self::Threads(threads) => threads.rank(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.rank(),
            Self::Faulty(faulty) => faulty.inner.rank(),
        }
    }

    /// How many ranks really share this node, whatever nodes were declared.
    pub(crate) fn local_ranks(&self) -> usize {
        match self {
            Self::Threads(threads) => threads.members().len(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.topology().node(mpi.topology().node_of(mpi.rank())).ranks(),
            Self::Faulty(faulty) => faulty.inner.local_ranks(),
        }
    }

    /// Whether another thread than the one that made this may use it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if MPI forbids it; what to do.
    pub(crate) fn check_other_threads(&self) -> crate::error::Result<()> {
        match self {
            Self::Threads(_) => Ok(()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.check_other_threads(),
            Self::Faulty(faulty) => faulty.inner.check_other_threads(),
        }
    }

    /// Says whether this rank computes only when nothing is in flight. Otherwise its two threads may share a
    /// core, and the one that waits for messages is to give way at once.
    pub(crate) fn has_core_to_itself(&mut self, alone: bool) {
        let threads = self.local_ranks() * if alone { 1 } else { 2 };
        let spins = spins(threads, self.node_cores());
        match self {
            Self::Threads(threads) => threads.set_spins(spins),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.set_spins(spins),
            Self::Faulty(faulty) => faulty.inner.has_core_to_itself(alone),
        }
    }

    /// How many cores all ranks of this node may use together.
    pub(crate) fn node_cores(&self) -> usize {
        match self {
            Self::Threads(_) => usable_cores(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.node_cores(),
            Self::Faulty(faulty) => faulty.inner.node_cores(),
        }
    }

    /// Where the ranks live, as far as this transport can see.
    pub(crate) fn topology(&self) -> Topology {
        match self {
            Self::Threads(threads) => Topology::single_node(threads.members().len()),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.topology().clone(),
            Self::Faulty(faulty) => faulty.inner.topology(),
        }
    }

    /// Where registered memory of this rank comes from.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        match self.shared() {
            Some(shared) => Arc::clone(shared.registry()),
            None => Registry::of_threads(),
        }
    }

    /// What the ranks of this node know of each other beside their messages.
    #[inline]
    pub(crate) fn roll(&self) -> &Roll {
        match self {
            Self::Threads(threads) => threads.roll(),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.roll(),
            Self::Faulty(faulty) => faulty.inner.roll(),
        }
    }

    /// The ranks that share memory with this one, and how.
    fn shared(&self) -> Option<&Shared> {
        match self {
            Self::Threads(threads) => Some(threads),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared(),
            Self::Faulty(faulty) => faulty.inner.shared(),
        }
    }

    /// Sends and receives at the same time; returns when both are done, and the bytes sent may change again.
    #[inline]
    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        patience: &Patience,
    ) -> Result<(), Failure> {
        match self {
            Self::Threads(threads) => threads.exchange(header, outgoing, incoming, patience),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.exchange(header, outgoing, incoming, patience),
            Self::Faulty(faulty) => {
                faulty.delay();
                let outgoing = faulty.sent(outgoing);
                faulty.inner.exchange(header, outgoing, incoming, patience)
            }
        }
    }

    /// Whether the send of a message to this rank is eager: it is copied at once, and waits for nobody.
    pub(crate) fn takes_a_copy(&self, to: Rank, size_bytes: usize) -> bool {
        size_bytes <= EAGER_BYTES && to != self.rank() && self.shared().is_some_and(|shared| shared.has(to))
    }

    /// Whether the kernel copies between processes of this node; `None` where none share memory.
    pub(crate) fn asks_kernel(&self) -> Option<bool> {
        match self {
            Self::Threads(_) => None,
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared().map(Shared::asks_kernel),
            Self::Faulty(faulty) => faulty.inner.asks_kernel(),
        }
    }

    /// Whether all of the `ranks` ranks of the world share memory.
    pub(crate) fn is_shared_by(&self, ranks: usize) -> bool {
        self.shared().is_some_and(|shared| shared.members().len() == ranks)
    }

    /// Opens this rank's buffer to all ranks, lets `work` work on this rank's range of all buffers, and returns when
    /// all ranks have worked on theirs.
    ///
    /// All ranks of a world that [shares memory](Self::is_shared_by) call it with buffers of the same size, and with
    /// the same ranges of all ranks, which are parts of a partition.
    pub(crate) fn meet(
        &mut self,
        header: &Header,
        buffer: &mut [u8],
        shares: Shares<impl Fn(Rank) -> Range<usize>>,
        patience: &Patience,
        work: impl FnOnce(&mut Open<'_>) -> crate::error::Result<()>,
    ) -> Result<(), Failure> {
        let shared = match self {
            Self::Threads(threads) => Some(&mut **threads),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.shared_mut(),
            Self::Faulty(faulty) => {
                faulty.delay();
                return faulty.inner.meet(header, buffer, shares, patience, work);
            }
        };
        shared.expect("ranks that meet share memory").meet(header, buffer, shares, patience, work)
    }

    #[cfg(feature = "mpi")]
    /// Whether an exchange can go on between nodes while a rank does something else. All of the `ranks` ranks say the same.
    pub(crate) fn has_lanes(&self, ranks: usize) -> bool {
        match self {
            Self::Threads(_) => false,
            Self::Mpi(_) => !self.is_shared_by(ranks),
            Self::Faulty(faulty) => faulty.inner.has_lanes(ranks),
        }
    }

    #[cfg(feature = "mpi")]
    /// What reaches other nodes, where it has lanes.
    pub(crate) fn between_nodes(&mut self) -> &mut mpi::Mpi {
        match self {
            Self::Threads(_) => unreachable!("threads are in one process"),
            Self::Mpi(mpi) => mpi,
            Self::Faulty(faulty) => {
                faulty.delay();
                faulty.inner.between_nodes()
            }
        }
    }

    #[cfg(feature = "mpi")]
    /// A phase by MPI's own collectives. All ranks of its group are known to be in the same call.
    pub(crate) fn by_mpi(
        &mut self,
        task: &mpi::InGroup<'_>,
        held: &mut [u8],
        patience: &Patience,
    ) -> Result<(), Failure> {
        match self {
            Self::Threads(_) => {
                unreachable!("threads have no MPI, as was seen when the algorithm was chosen")
            }
            Self::Mpi(mpi) => mpi.in_group(task, held, patience),
            Self::Faulty(faulty) => {
                faulty.delay();
                faulty.inner.by_mpi(task, held, patience)
            }
        }
    }

    /// From now on this says why this rank ends.
    pub(crate) fn set_failure_report(&mut self, report: Arc<dyn FailureReport>) {
        match self {
            Self::Threads(threads) => threads.set_failure_report(report),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.set_failure_report(report),
            Self::Faulty(faulty) => faulty.inner.set_failure_report(report),
        }
    }

    /// Says that this rank cannot go on, and tells the other ranks.
    pub(crate) fn fail(&mut self, cause: &str) {
        match self {
            Self::Threads(threads) => threads.fail(cause),
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.fail(cause),
            Self::Faulty(faulty) => faulty.inner.fail(cause),
        }
    }

    /// Ends the job if MPI still has memory of a caller's who is about to get it back.
    pub(crate) fn end_if_stranded(&self) {
        match self {
            Self::Threads(_) => {}
            #[cfg(feature = "mpi")]
            Self::Mpi(mpi) => mpi.end_if_stranded(),
            Self::Faulty(faulty) => faulty.inner.end_if_stranded(),
        }
    }
}
