//! How a world begins: of processes that MPI or a bootstrap brings together, or of threads, and with a watchdog over them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder as ThreadBuilder, ScopedJoinHandle};

use crate::communicator::Communicator;
use crate::config::{Config, OnFailure};
use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::watchdog::{Card, Cards, Hub, Kind, Watchdog, Watched};

mod builder;

pub use builder::{Builder, Unisono};

impl Communicator {
    /// Takes part in the world that was launched, by `mpirun`, `unisono launch`, `torchrun` or whatever else says `RANK` and
    /// `WORLD_SIZE`; a world of one where nothing has launched this process. The ranks are all that the program does: all
    /// processes end when one fails ([`OnFailure::EndJob`]).
    ///
    /// Called once, by the main thread of every process.
    ///
    /// # Errors
    /// As [`Builder::detect`].
    pub fn init() -> Result<Self> {
        Unisono::builder().on_failure(OnFailure::EndJob).detect()
    }

    /// Takes part in a communicator of an MPI that the program has initialised itself. A failure is an error of the calls that it
    /// concerns ([`OnFailure::ReturnError`]).
    ///
    /// # Errors
    /// As [`Builder::attach`], which says more.
    #[cfg(feature = "mpi")]
    pub fn attach(communicator: &impl mpi::raw::AsRaw<Raw = mpi::ffi::MPI_Comm>) -> Result<Self> {
        Unisono::builder().attach(communicator)
    }

    /// The ends of a world of `ranks` threads in this process, rank 0 first. Each goes to a thread of its
    /// own.
    ///
    /// [`crate::threads()`] starts the threads too.
    ///
    /// # Errors
    /// [`Error::Setting`] for a variable of the environment that makes no sense.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn threads(ranks: usize) -> Result<Vec<Self>> {
        Unisono::builder().threads(ranks)
    }
}

/// The ends of a world of threads, with one watchdog over all of them.
fn over_threads(mut world: Vec<Communicator>, config: &Config) -> Result<Vec<Communicator>> {
    let statuses: Vec<_> = world.iter().map(|comm| comm.status().clone()).collect();
    let cards = Cards(vec![Card::of_this_process(0); statuses.len()]);
    let warn_after = config.warn;
    let (kind, on_failure) = (Kind::Threads, config.on_failure);
    let watchdog = Watchdog::start(Watched { statuses, cards, hub: None, warn_after, kind, on_failure })?;
    let watchdog = Arc::new(watchdog);
    for (comm, report) in world.iter_mut().zip(watchdog.reports()) {
        comm.guard(watchdog.clone(), report.clone());
    }
    Ok(world)
}

/// Runs `main` on `ranks` threads, each with its end of a new world; what they return, rank 0 first.
///
/// # Panics
/// If a rank panics; the others are told first, and do not wait for it. If the environment has settings
/// that make no sense.
pub fn threads<R: Send>(ranks: usize, main: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    try_threads(ranks, main).unwrap_or_else(|error| panic!("{error}"))
}

/// The same as [`threads`], where the system may not have that much.
///
/// # Errors
/// Before any rank begins: [`Error::Memory`] and [`Error::Launch`] if the system gives no memory, or no thread, for so many
/// ranks, and [`Error::Setting`] if the environment has settings that make no sense.
///
/// # Panics
/// If `ranks` is 0, or a rank panics.
pub fn try_threads<R: Send>(ranks: usize, main: impl Fn(Communicator) -> R + Sync) -> Result<Vec<R>> {
    let world = Communicator::threads(ranks)?;
    std::thread::scope(|scope| {
        let main = &main;
        let start = |rank| {
            let (given, comm) = channel();
            // If another thread cannot be started, nothing is given, and no rank begins.
            let run = move || comm.recv().ok().map(main);
            let thread = ThreadBuilder::new().name(format!("rank {rank}")).spawn_scoped(scope, run)?;
            Ok((given, thread))
        };
        let started: Result<Vec<_>, io::Error> = (0..ranks).map(start).collect();
        let started = started.map_err(|cause| {
            Error::Launch(format!(
                "the system does not give {ranks} threads: {cause}; see `ulimit -u`, `ulimit -v` and pids.max of a container"
            ))
        })?;
        let begun = world.into_iter().zip(started).map(|(comm, (given, thread))| {
            given.send(comm).expect("the thread waits for it");
            thread
        });
        let threads: Vec<_> = begun.collect();
        let joined = threads.into_iter().map(ScopedJoinHandle::join);
        let joined = joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        Ok(joined.map(|result| result.expect("every rank was given its end")).collect())
    })
}

/// One end of a world of processes, with the watchdog of this one. Called by all ranks.
fn over_processes(transport: Transport, config: &Config) -> Result<Communicator> {
    let mut comm = Communicator::agreed(transport, config)?;
    let status = comm.status().clone();
    let mut card = Card::of_this_process(status.members()[0]);
    let hub = hub(&comm, config, &mut card);
    let cards = gathered(&mut comm, &card)?;
    let (statuses, warn_after) = (vec![status], config.warn);
    let (kind, on_failure) = (Kind::Processes, config.on_failure);
    let watchdog = Arc::new(Watchdog::start(Watched { statuses, cards, hub, warn_after, kind, on_failure })?);
    let report = watchdog.reports()[0].clone();
    comm.guard(watchdog, report);
    comm.begin();
    Ok(comm)
}

/// Where the other nodes reach rank 0, if there are any, and the program is one that ends when a rank fails: nobody else opens a port.
#[cfg(feature = "mpi")]
fn hub(comm: &Communicator, config: &Config, card: &mut Card) -> Option<Hub> {
    let has_nodes = comm.status().members().len() < comm.ranks();
    let is_hub = config.watchdog && config.on_failure == OnFailure::EndJob && comm.rank() == 0 && has_nodes;
    let hub = is_hub.then(|| Hub::open(card, &crate::config::Network::from_environment()));
    hub.transpose().unwrap_or_else(|error| {
        crate::system::say(&format!(
            "unisono: rank 0 cannot listen for the other nodes ({error}): failures there are seen by deadlines \
             alone\n"
        ));
        None
    })
}

/// There are no other nodes.
#[cfg(not(feature = "mpi"))]
fn hub(_: &Communicator, _: &Config, _: &mut Card) -> Option<Hub> {
    None
}

/// The cards of all ranks.
fn gathered(comm: &mut Communicator, card: &Card) -> Result<Cards> {
    let words = comm.gather_words(&card.to_words())?;
    let cards = words.iter().map(|words| Card::from_words(words)).collect::<Option<_>>();
    let other = || Error::Launch("ranks of different versions of unisono are in one world".to_owned());
    cards.map(Cards).ok_or_else(other)
}
