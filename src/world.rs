//! Creates worlds of processes (by MPI or a bootstrap) or threads, and sets their guards.

use std::io;
use std::net::TcpListener;
use std::slice;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder as ThreadBuilder, ScopedJoinHandle};

use crate::communicator::Communicator;
use crate::config::{Config, OnFailure};
use crate::constants;
use crate::error::{Error, Result};
use crate::observe::{Observer, next_world};
use crate::transport::{Bootstrap, Fabric, gather};
use crate::watchdog::{Identities, Identity, Kind, Watched, watch};

mod builder;
mod grow;
mod shrink;

pub use builder::{Builder, Unisono};

/// Joins the world launched by `mpirun`, `unisono launch`, `torchrun` or any launcher that sets `RANK` and `WORLD_SIZE`.
/// Without a launcher, it creates a world of one rank. All processes end when a rank fails ([`OnFailure::EndJob`]).
///
/// Call it once, from the main thread of every process. Prefer [`run`](crate::run()) where a rank may fail outside collectives: it
/// reports the cause to all ranks.
///
/// # Errors
/// As [`Builder::detect`].
pub fn init() -> Result<Communicator> {
    Unisono::builder().on_failure(OnFailure::EndJob).detect()
}

impl Communicator {
    /// Joins a communicator of an MPI that the program has initialised. After a failure, the affected calls return errors
    /// ([`OnFailure::ReturnError`]).
    ///
    /// # Errors
    /// As [`Builder::attach`], which has the details.
    #[cfg(feature = "mpi")]
    pub fn attach(communicator: &impl mpi::raw::AsRaw<Raw = mpi::ffi::MPI_Comm>) -> Result<Self> {
        Unisono::builder().attach(communicator)
    }
}

fn over_threads(mut world: Vec<Communicator>, config: &Config) -> Result<Vec<Communicator>> {
    constants::of_threads(&mut world, config)?;
    let identities = Identities(vec![identity(&world[0], config); world.len()]);
    watch_over(&mut world, Kind::Threads, identities, Vec::new(), config)?;
    Ok(world)
}

/// Returns the identity of the ranks of this process in a new world.
fn identity(comm: &Communicator, config: &Config) -> Identity {
    Identity { world: next_world(config), ..Identity::of_this_process(comm.status().members()[0]) }
}

/// Sets the observer of a communicator of a new world, if the settings enable metrics or traces.
fn observe(comm: &mut Communicator, number: u64) -> Result<()> {
    let rank = comm.rank();
    // Independent of declared nodes.
    let local_rank = comm.transport_of_engine().topology().local_rank(rank);
    let world = (rank, comm.ranks());
    let observer = Observer::of_world(comm.config(), number, world, local_rank)?;
    observer.into_iter().for_each(|observer| comm.status().set_observer(observer));
    Ok(())
}

/// Runs `main` on `ranks` threads, each with its communicator of a new world, and returns the results, rank 0 first.
///
/// # Panics
/// If a rank panics. The others are informed first, and do not wait for it. If an environment variable is invalid.
pub fn threads<R: Send>(ranks: usize, main: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    Unisono::builder().on_threads(ranks, main).unwrap_or_else(|error| panic!("{error}"))
}

fn on_threads<R: Send>(world: Vec<Communicator>, main: impl Fn(Communicator) -> R + Sync) -> Result<Vec<R>> {
    let ranks = world.len();
    std::thread::scope(|scope| {
        let main = &main;
        let start = |rank| {
            let (sender, comm) = channel();
            // Starts the ranks only once all threads exist.
            let run = move || comm.recv().ok().map(main);
            let thread = ThreadBuilder::new().name(format!("rank {rank}")).spawn_scoped(scope, run)?;
            Ok((sender, thread))
        };
        let started: Result<Vec<_>, io::Error> = (0..ranks).map(start).collect();
        let started = started.map_err(|cause| {
            Error::Launch(format!(
                "cannot start {ranks} threads: {cause}; see `ulimit -u`, `ulimit -v` and pids.max of a container"
            ))
        })?;
        let begun = world.into_iter().zip(started).map(|(comm, (sender, thread))| {
            sender.send(comm).expect("the thread waits for it");
            thread
        });
        let threads: Vec<_> = begun.collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        let joined = joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(joined.map(|result| result.expect("every rank has its communicator")).collect())
    })
}

/// Returns the communicator of a rank that is a process, with its guard. All ranks call it.
fn over_processes(transport: Fabric, config: &Config) -> Result<Communicator> {
    let mut comm = Communicator::of_process(transport, config)?;
    constants::agree(&mut comm, config)?;
    let mut identity = identity(&comm, config);
    let hub = hub(&comm, config, &mut identity);
    let identities = Identities(gather(&mut comm.as_bootstrap("begin"), &identity)?);
    watch_over(slice::from_mut(&mut comm), Kind::Processes, identities, hub, config)?;
    comm.begin();
    Ok(comm)
}

/// Sets the guard and the observer of the ranks of this process in a new world.
fn watch_over(
    comms: &mut [Communicator],
    kind: Kind,
    identities: Identities,
    hub: Vec<TcpListener>,
    config: &Config,
) -> Result<()> {
    let controls = comms[0].take_controls();
    let statuses = comms.iter().map(|comm| comm.status().clone()).collect();
    let number = identities.0.iter().map(|identity| identity.world).max().unwrap_or(0);
    let (identities, warn_after, on_failure) = (Arc::new(identities), config.warn, config.on_failure);
    let guard = watch(Watched { statuses, identities, hub, controls, warn_after, kind, on_failure })?;
    comms.iter_mut().for_each(|comm| comm.guard(Arc::clone(&guard)));
    // The others would blame this rank for leaving, and its watchdog would report that instead of the error.
    let observed =
        |comm: &mut Communicator| observe(comm, number).inspect_err(|error| comm.fail(&error.to_string()));
    comms.iter_mut().try_for_each(observed)
}

/// Sets the guard of a rank of a new world whose ranks share a bootstrap. All of them call it.
fn meet(comm: &mut Communicator, bootstrap: &mut dyn Bootstrap) -> Result<()> {
    let config = comm.config().clone();
    let identities = Identities(gather(bootstrap, &identity(comm, &config))?);
    watch_over(slice::from_mut(comm), Kind::Processes, identities, Vec::new(), &config)
}

/// Opens rank 0's port for the other nodes, if there are any and a failure ends the job. Otherwise no rank opens a port.
fn hub(comm: &Communicator, config: &Config, identity: &mut Identity) -> Vec<TcpListener> {
    let has_nodes = comm.status().members().len() < comm.ranks();
    if !config.watchdog || config.on_failure != OnFailure::EndJob || comm.rank() != 0 || !has_nodes {
        return Vec::new();
    }
    identity.listen(&crate::config::Interfaces::from_environment()).unwrap_or_else(|error| {
        crate::system::print_line(&format!(
            "rank 0 cannot listen for the other nodes ({error}): failures there are detected by deadlines \
             alone"
        ));
        Vec::new()
    })
}
