//! Worlds of ranks that MPI has started or connects: their communicator, their link through MPI, and MPI's own collectives.
//!
//! MPI only carries bytes between two ranks; reductions are Unisono's. All waits poll with deadlines. Only set-up,
//! finalisation and MPI's own collectives (a baseline) block inside MPI.

use std::thread::ThreadId;

use unisono_collectives::{Rank, Topology};

use super::Fabric;
use super::agreement::agree;
use super::link::Links;
use crate::config::{Config, Launcher, OnFailure};
use crate::error::{Error, Result};

mod assemble;
mod bootstrap;
mod collectives;
mod ending;
mod launch;
mod link;
mod progress;
mod reductions;
mod sys;

use assemble::assemble;
use bootstrap::OfComm;
pub(crate) use launch::{alone_in_job, library_fits};
use link::{ByMpi, OF_COLLECTIVES, OF_MESSAGES};
pub(crate) use progress::Driven;
use reductions::Reductions;
use sys::{Comm, State, User};
pub(crate) use sys::{header_version, library_version};

/// The error when MPI is already finalised.
const OVER: &str = "MPI was finalised in this process, when its first communicator was dropped or by the program, and cannot be \
                    initialised again: keep one communicator for as long as there is something to communicate";

/// One rank's handle to the MPI of a world.
#[derive(Debug)]
pub(super) struct World {
    comm: Comm,
    groups: Vec<collectives::GroupComm>,
    reductions: Reductions,
    /// Whether one of MPI's own collectives failed while MPI still held the caller's buffer.
    is_stranded: bool,
    /// Whether this communicator initialised MPI, and therefore finalises it.
    owns_mpi: bool,
    /// The only thread that may call MPI, if the thread level is below `MPI_THREAD_SERIALIZED`.
    only_thread: Option<ThreadId>,
    on_failure: OnFailure,
    _user: User,
}

/// Initialises MPI and joins the launched world. All ranks call it, including those with invalid settings, since the others wait
/// for them.
pub(crate) fn init(config: Result<Config>) -> Result<(Fabric, Config)> {
    match sys::state()? {
        State::NotYet => {}
        State::Up => {
            return Err(Error::Launch(
                "MPI is already initialised: attach to it instead of initialising it".into(),
            ));
        }
        State::Over => return Err(Error::Launch(OVER.into())),
    }
    let _watch = launch::before_mpi(&config)?;
    sys::init()?;
    let begun = new(Comm::world(), true, config);
    if let Err(Error::Launch(_) | Error::Setting(_)) = &begun {
        // All ranks have this error, and finalise together.
        sys::finalize()?;
    }
    begun
}

/// Joins a communicator of an MPI that is already initialised.
pub(crate) fn attach(raw: ::mpi::ffi::MPI_Comm, config: Result<Config>) -> Result<(Fabric, Config)> {
    match sys::state()? {
        State::Up => {}
        State::NotYet => {
            return Err(Error::Launch("MPI is not initialised: there is nothing to attach to".into()));
        }
        State::Over => return Err(Error::Launch(OVER.into())),
    }
    let parent = Comm::from_raw(raw);
    if parent.has_two_groups()? {
        return Err(Error::Launch(
            "an intercommunicator has two groups of ranks: attach to the communicator that MPI_Intercomm_merge makes of it".into(),
        ));
    }
    let _watch = launch::before_mpi(&config)?;
    new(parent, false, config)
}

fn new(parent: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Fabric, Config)> {
    launch::check_world()?;
    over(parent.duplicate()?, owns_mpi, config)
}

/// Returns the fabric over a communicator that belongs to Unisono.
fn over(comm: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Fabric, Config)> {
    let user = User::new();
    let mut bootstrap = OfComm::new(comm)?;
    let (config, warning) = match agree(&mut bootstrap, config, &library_version()) {
        Ok(agreed) => agreed,
        Err(error) => {
            comm.free()?;
            return Err(error);
        }
    };
    let topology = topology(&leaders(comm)?);
    let warnings = warning.into_iter().chain(alone_in_job(topology.ranks(), Launcher::detect())).collect();
    let world = World {
        comm,
        groups: Vec::new(),
        reductions: Reductions::tested(comm)?,
        is_stranded: false,
        owns_mpi,
        only_thread: (!sys::any_thread_may_call()?).then(|| std::thread::current().id()),
        on_failure: config.on_failure,
        _user: user,
    };
    Ok((assemble(&mut bootstrap, topology, world, (&config, warnings))?, config))
}

impl World {
    /// Returns the fabric of a group. Only its members call it.
    pub(super) fn group(&self, members: &[Rank], config: &Config) -> Result<Fabric> {
        sys::check_thread(self.only_thread);
        let comm = self.comm.of_group(members)?;
        over(comm, false, Ok(config.clone())).map(|(group, _)| group)
    }

    /// Returns the links through MPI in a world of this many ranks, with segments of at most this size.
    pub(super) fn links(&self, ranks: usize, segment_bytes: usize) -> Links {
        let link = |tags| Box::new(ByMpi::new(self.comm, (tags, segment_bytes), ranks, self.only_thread));
        Links { collectives: link(OF_COLLECTIVES), messages: link(OF_MESSAGES), controls: Vec::new() }
    }

    /// # Errors
    /// [`Error::Unsupported`] if only the thread that initialised MPI may call it.
    pub(super) fn check_other_threads(&self) -> Result<()> {
        match self.only_thread {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported(
                "a collective in flight needs MPI_THREAD_SERIALIZED, but MPI was initialised with a lower level: let \
                 unisono::init() initialise it, or request MPI_THREAD_SERIALIZED from MPI_Init_thread"
                    .into(),
            )),
        }
    }
}

/// Returns the topology, given the leader of every rank. Nodes are numbered in the order of their leaders.
fn topology(leaders: &[u64]) -> Topology {
    let mut nodes: Vec<_> = leaders.to_vec();
    nodes.sort_unstable();
    nodes.dedup();
    let node = |leader| nodes.binary_search(leader).expect("every leader leads a node");
    Topology::from_node_of(leaders.iter().map(node).collect())
}

/// Returns the leader of every rank's node: the world rank of its local rank 0. All ranks call it.
fn leaders(comm: Comm) -> Result<Vec<u64>> {
    let node = comm.node()?;
    let leader = node.all_gather(comm.rank()? as u64)?[0];
    node.free()?;
    comm.all_gather(leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_leaders() {
        assert_eq!(topology(&[0, 1, 0, 1, 4]), Topology::from_node_of(vec![0, 1, 0, 1, 2]));
    }
}
