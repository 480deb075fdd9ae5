//! Worlds of ranks that MPI has started or connects: their communicator, their link through MPI, and MPI's own collectives.
//!
//! MPI only carries bytes between two ranks; reductions are Unisono's. All waits poll with deadlines. Only set-up,
//! finalisation and MPI's own collectives (a baseline) block inside MPI.

use std::ops::Range;
use std::thread::ThreadId;

use unisono_collectives::{Group, Rank, Topology};

use super::agreement::agree;
use super::bootstrap::{gather, gather_padded};
use super::join::{Joined, join, topology};
use super::link::Links;
use super::{Bootstrap, Fabric, network};
use crate::call::Call;
use crate::config::{Config, Inside, Launcher, Network, OnFailure};
use crate::error::{Error, Result};
use crate::system;

mod ending;
mod launch;
mod link;
mod progress;
mod reductions;
mod sys;

pub(crate) use launch::{alone_in_job, library_fits};
use link::{ByMpi, OF_COLLECTIVES, OF_MESSAGES};
pub(crate) use progress::Driven;
use reductions::Reductions;
use sys::{Comm, State};
pub(crate) use sys::{header_version, library_version};

/// The largest world over MPI that uses Unisono's connections by default. Every pair of ranks connects at the start, whereas MPI connects
/// only ranks that communicate.
const MAX_RANKS: usize = 512;
/// The error when MPI is already finalised.
const OVER: &str = "MPI was finalised in this process, when its first communicator was dropped or by the program, and cannot be \
                    initialised again: keep one communicator for as long as there is something to communicate";

/// One rank's handle to the MPI of a world.
#[derive(Debug)]
pub(super) struct World {
    comm: Comm,
    /// The communicators of groups of ranks, created on first use.
    groups: Vec<(Group, Comm)>,
    pub(super) reductions: Reductions,
    /// Whether this communicator initialised MPI, and therefore finalises it.
    owns_mpi: bool,
    /// The only thread that may call MPI, if the thread level is below `MPI_THREAD_SERIALIZED`.
    only_thread: Option<ThreadId>,
    on_failure: OnFailure,
}

/// Initialises MPI and joins the launched world. All ranks call it, including those with invalid settings, since the others wait
/// for them.
pub(crate) fn init(config: Result<Config>) -> Result<(Fabric, Config)> {
    check_state(State::NotYet, "MPI is already initialised: attach to it instead of initialising it")?;
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
    check_state(State::Up, "MPI is not initialised: there is nothing to attach to")?;
    let parent = Comm(raw);
    if parent.has_two_groups()? {
        return Err(Error::Launch(
            "an intercommunicator has two groups of ranks: attach to the communicator that MPI_Intercomm_merge makes of it".into(),
        ));
    }
    let _watch = launch::before_mpi(&config)?;
    new(parent, false, config)
}

/// Checks the state of MPI in this process, with the error for the other state in which it can be used.
fn check_state(expected: State, other: &str) -> Result<()> {
    match sys::state() {
        state if state == expected => Ok(()),
        State::Over => Err(Error::Launch(OVER.into())),
        State::NotYet | State::Up => Err(Error::Launch(other.into())),
    }
}

fn new(parent: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Fabric, Config)> {
    launch::check_world()?;
    over(parent.duplicate()?, owns_mpi, config)
}

/// Returns the fabric over a communicator that belongs to Unisono.
fn over(comm: Comm, owns_mpi: bool, config: Result<Config>) -> Result<(Fabric, Config)> {
    let mut bootstrap = OfComm { comm, rank: comm.rank()?, ranks: comm.ranks()? };
    let agreed = agree(&mut bootstrap, config, &library_version());
    if agreed.is_err() {
        comm.free()?;
    }
    let (config, warning) = agreed?;
    // Nodes as launchers see them: one machine may have several host names, and PID namespaces only prevent that ranks share memory.
    let topology = topology(&gather(&mut bootstrap, &(system::host(), system::boot()))?);
    let ranks = topology.ranks();
    let warnings =
        warning.into_iter().chain(alone_in_job(Comm::world().ranks()?, Launcher::detect())).collect();
    let world = World {
        comm,
        groups: Vec::new(),
        reductions: Reductions::tested(comm)?,
        owns_mpi,
        only_thread: (!sys::any_thread_may_call()).then(|| std::thread::current().id()),
        on_failure: config.on_failure,
    };
    let declared = config.nodes.as_ref().filter(|declared| declared.ranks() == ranks);
    let joined = join(&mut bootstrap, (topology, declared), &config, warnings)?;
    joined.warn_if_not_shared("MPI", &config);
    let links = match own_links(&mut bootstrap, &joined, &config)? {
        Some(links) => links,
        None => {
            let link =
                |tag| Box::new(ByMpi::new(comm, (tag, config.segment_bytes), ranks, world.only_thread));
            let (collectives, messages) = (link(OF_COLLECTIVES), link(OF_MESSAGES));
            Links { name: "mpi", collectives, messages, controls: Vec::new() }
        }
    };
    let mut fabric = joined.over(&mut bootstrap, links)?;
    fabric.mpi = Some(Box::new(world));
    Ok((fabric, config))
}

impl World {
    /// Returns the fabric of a group. Only its members call it.
    pub(super) fn group(&self, members: &[Rank], config: &Config) -> Result<Fabric> {
        sys::check_thread(self.only_thread);
        let comm = self.comm.of_group(members)?;
        over(comm, false, Ok(config.clone())).map(|(group, _)| group)
    }

    /// As [`Fabric::by_vendor`].
    pub(super) fn vendor(
        &mut self,
        group: Option<&Group>,
        call: &Call,
        parts: &[Range<usize>],
        buffer: &mut [u8],
    ) -> Result<()> {
        sys::check_thread(self.only_thread);
        let comm = match group {
            None => self.comm,
            Some(group) => self.of_group(group)?,
        };
        comm.run(call, parts, buffer)
    }

    fn of_group(&mut self, group: &Group) -> Result<Comm> {
        if let Some((_, existing)) = self.groups.iter().find(|(known, _)| known == group) {
            return Ok(*existing);
        }
        let comm = self.comm.of_group(group.members())?;
        self.groups.push((group.clone(), comm));
        Ok(comm)
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

/// Returns Unisono's connections, if they are requested, or if MPI has nothing better than TCP between nodes. All ranks call it.
///
/// # Errors
/// [`Error::Launch`], on all ranks, if the connections are requested and ranks cannot connect.
fn own_links(bootstrap: &mut dyn Bootstrap, joined: &Joined, config: &Config) -> Result<Option<Links>> {
    // All ranks have the same setting.
    let is_requested = config.network.is_own();
    if !is_requested && !is_better(bootstrap, &joined.topology, config)? {
        return Ok(None);
    }
    match network::connect(bootstrap, joined, config)? {
        Ok(links) => Ok(Some(links)),
        Err(why) if is_requested => Err(Error::Launch(why)),
        Err(why) => {
            if bootstrap.rank() == 0 && config.warnings {
                system::print_once(&format!("messages between nodes go through MPI, since {why}"));
            }
            Ok(None)
        }
    }
}

/// Returns whether Unisono's connections are preferable to MPI: there are several nodes, not too many ranks, and no adapter that MPI
/// could use better.
fn is_better(bootstrap: &mut dyn Bootstrap, topology: &Topology, config: &Config) -> Result<bool> {
    let is_possible = config.network == Network::Auto && config.inside == Inside::SharedMemory;
    if !is_possible || topology.nodes() < 2 || topology.ranks() > MAX_RANKS {
        return Ok(false);
    }
    Ok(!network::has_rdma(bootstrap)?)
}

/// All-gathers over a communicator. They block, so they are used only during set-up.
#[derive(Debug)]
struct OfComm {
    comm: Comm,
    rank: Rank,
    ranks: usize,
}

impl Bootstrap for OfComm {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        gather_padded(own, |own| self.comm.all_gather(own))
    }
}
