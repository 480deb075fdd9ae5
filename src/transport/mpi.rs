//! Ranks that are processes under an MPI launcher: messages through MPI, waits of our own.
//!
//! MPI carries bytes between two ranks, and nothing else: what it would reduce, we reduce. Only setting up,
//! finalising, and MPI's own all-reduce (a baseline) block inside MPI.

use std::thread::ThreadId;
use std::time::Duration;

use unisono_collectives::{Rank, Topology};

use super::{Failure, Header, Incoming, Outgoing};
use crate::config::Launcher;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::reduce::ReduceOp;

mod exchange;
mod overheard;
mod sys;

use exchange::Messages;
use sys::Comm;
pub(crate) use sys::library_version;

/// The exit code of a job that a failed rank ends.
const FAILED: i32 = 1;

/// How long a rank waits before it ends the job: its launcher, which passes on what ranks write, may throw away
/// what it has not yet read when the job ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// One rank's end of an MPI world.
#[derive(Debug)]
pub(crate) struct Mpi {
    comm: Comm,
    rank: Rank,
    topology: Topology,
    node_cores: usize,
    messages: Messages,
    /// Whether MPI was initialised here, and is to be finalised here.
    owns_mpi: bool,
    /// The only thread that may call MPI, where MPI does not allow more.
    only_thread: Option<ThreadId>,
    /// What this rank failed of.
    cause: Option<String>,
}

impl Mpi {
    /// Initialises MPI and takes part in the world that was launched.
    pub(crate) fn init(segment_bytes: usize) -> Result<Self> {
        if sys::is_up()? {
            return Err(Error::Launch(
                "MPI is already initialised: attach to it instead of initialising it".into(),
            ));
        }
        sys::init()?;
        let world = Comm::world();
        check_launch(world.ranks()?, Launcher::detect())?;
        Self::new(world, true, segment_bytes)
    }

    /// Takes part in a communicator of an MPI that is already up.
    pub(crate) fn attach(raw: ::mpi::ffi::MPI_Comm, segment_bytes: usize) -> Result<Self> {
        if !sys::is_up()? {
            return Err(Error::Launch(
                "MPI is not initialised, or already finalised: there is nothing to attach to".into(),
            ));
        }
        Self::new(Comm::from_raw(raw), false, segment_bytes)
    }

    fn new(parent: Comm, owns_mpi: bool, segment_bytes: usize) -> Result<Self> {
        let comm = parent.duplicate()?;
        let node = comm.node()?;
        let (rank, local_ranks) = (comm.rank()?, node.ranks()?);
        // A node is known by the rank in the world of its local rank 0.
        let leader = node.all_gather(rank as u64)?[0];
        let node_cores = node_cores(node)?;
        node.free()?;
        let topology = topology(&comm.all_gather(leader)?);
        let only_thread = (!sys::any_thread_may_call()?).then(|| std::thread::current().id());
        let messages = Messages::new(super::spins(local_ranks, node_cores), segment_bytes);
        Ok(Self { comm, rank, topology, node_cores, messages, owns_mpi, only_thread, cause: None })
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn node_cores(&self) -> usize {
        self.node_cores
    }

    pub(crate) fn exchange(
        &mut self,
        header: &Header,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
        timeout: Duration,
    ) -> Result<(), Failure> {
        self.check_thread();
        self.messages.exchange((self.comm, self.rank), header, outgoing, incoming, timeout)
    }

    /// MPI's own all-reduce.
    pub(crate) fn vendor_all_reduce(&mut self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        self.check_thread();
        self.comm.all_reduce(buffer, dtype, op)
    }

    /// Remembers why this rank cannot go on; the job is ended when the communicator is dropped.
    pub(crate) fn fail(&mut self, cause: &str) {
        self.cause.get_or_insert_with(|| cause.to_owned());
        if self.messages.are_stranded() {
            // MPI still has the caller's memory, and the caller is about to get it back.
            end_job(self.rank, cause);
        }
    }

    fn check_thread(&self) {
        assert!(
            self.only_thread.is_none_or(|only| only == std::thread::current().id()),
            "this MPI allows calls from one thread only: use the communicator on the thread that made it, or initialise \
             MPI with MPI_THREAD_SERIALIZED"
        );
    }
}

/// Says why, and ends all processes that were launched together.
fn end_job(rank: Rank, cause: &str) -> ! {
    eprintln!("unisono: rank {rank} ends the job: {cause}");
    std::thread::sleep(LAST_WORDS);
    Comm::world().abort(FAILED)
}

/// The nodes, numbered in the order of their leaders, from the leader of every rank.
fn topology(leaders: &[u64]) -> Topology {
    let mut nodes: Vec<_> = leaders.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    let node = |leader| nodes.binary_search(leader).expect("every leader leads a node");
    Topology::from_node_of(leaders.iter().map(node).collect())
}

/// How many cores the ranks of a node may use together. Each may be bound to some of its own, so no rank
/// knows by itself.
fn node_cores(node: Comm) -> Result<usize> {
    let Ok(own) = rustix::thread::sched_getaffinity(None) else { return Ok(super::usable_cores()) };
    let mut cores = 0;
    for first in (0..rustix::thread::CpuSet::MAX_CPU).step_by(64) {
        let word = (0..64).filter(|bit| own.is_set(first + bit)).map(|bit| 1 << bit).sum();
        let any = node.all_gather(word)?.into_iter().fold(0, |any, word| any | word);
        cores += any.count_ones() as usize;
    }
    Ok(cores)
}

/// Refuses to run as many worlds of one: what happens when the launcher belongs to another MPI.
fn check_launch(ranks: usize, launcher: Launcher) -> Result<()> {
    match launcher.ranks {
        Some(launched) if launched != ranks => Err(Error::Launch(format!(
            "the launcher started {launched} processes, but this program's MPI ({}) sees a world of {ranks}: the launcher \
             belongs to another MPI; use the mpirun of the MPI that the program was built with",
            library_version()
        ))),
        _ => Ok(()),
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail("it panicked");
        }
        // To finalise would be to wait for ranks that wait for this one.
        if let Some(cause) = &self.cause {
            end_job(self.rank, cause);
        }
        if !sys::is_up().unwrap_or(false) {
            return;
        }
        let ended = self.comm.free().and_then(|()| if self.owns_mpi { sys::finalize() } else { Ok(()) });
        if let Err(error) = ended {
            tracing::warn!(rank = self.rank, %error, "MPI did not end cleanly");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_leaders() {
        assert_eq!(topology(&[0, 1, 0, 1, 4]), Topology::from_node_of(vec![0, 1, 0, 1, 2]));
    }

    #[test]
    fn a_foreign_launcher_is_refused() {
        let launcher = |ranks| Launcher { ranks, ..Launcher::default() };
        assert!(check_launch(1, launcher(Some(4))).unwrap_err().to_string().contains("another MPI"));
        assert!(check_launch(4, launcher(Some(4))).is_ok());
        assert!(check_launch(1, launcher(None)).is_ok());
    }
}
