//! How a world begins: of processes that MPI brings together, or of threads, and with a watchdog over them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Builder, ScopedJoinHandle};

use crate::communicator::Communicator;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::transport::Transport;
#[cfg(feature = "mpi")]
use crate::transport::mpi::Mpi;
use crate::watchdog::{Card, Cards, Kind, Watchdog, Watched};

impl Communicator {
    /// Initialises MPI and takes part in the world that `mpirun` launched; a world of one without `mpirun`.
    ///
    /// Called once, by the main thread of every process.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is already initialised, the launcher belongs to another MPI than the program, or
    /// ranks are different programs; [`Error::Setting`], on all ranks, for a variable of the environment that makes
    /// no sense, or differs between ranks where it must not; [`Error::Mpi`] if MPI fails.
    #[cfg(feature = "mpi")]
    pub fn init() -> Result<Self> {
        let (mpi, config) = Mpi::init(Config::from_environment())?;
        over_processes::watched(mpi, &config)
    }

    /// Takes part in a communicator of an MPI that the program has initialised itself.
    ///
    /// It is duplicated, so that no message of ours meets one of yours, and MPI is never finalised here.
    /// Called by all ranks of the communicator. Drop the result before MPI is finalised.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is not up; otherwise as [`Communicator::init`].
    #[cfg(feature = "mpi")]
    pub fn attach(communicator: &impl mpi::raw::AsRaw<Raw = mpi::ffi::MPI_Comm>) -> Result<Self> {
        let (mpi, config) = Mpi::attach(communicator.as_raw(), Config::from_environment())?;
        over_processes::watched(mpi, &config)
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
        let config = Config::from_environment()?;
        over_threads(Self::of_threads(Transport::threads(ranks)?, &config)?, &config)
    }
}

/// The ends of a world of threads, with one watchdog over all of them.
fn over_threads(mut world: Vec<Communicator>, config: &Config) -> Result<Vec<Communicator>> {
    let rolls: Vec<_> = world.iter().map(|comm| comm.roll().clone()).collect();
    let cards = Cards(vec![Card::of_this_process(0); rolls.len()]);
    let warn_after = config.warn;
    let watchdog = Watchdog::start(Watched { rolls, cards, hub: None, warn_after, kind: Kind::Threads })?;
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
            let thread = Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run)?;
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

#[cfg(feature = "mpi")]
mod over_processes {
    use std::sync::Arc;

    use unisono_collectives::{Algorithm, Operation};

    use super::{Card, Cards, Communicator, Config, Error, Kind, Mpi, Result, Transport, Watchdog, Watched};
    use crate::call::Call;
    use crate::collective::Collective as _;
    use crate::config::Network;
    use crate::dtype::DType;
    use crate::select::Choice;
    use crate::system::say;
    use crate::watchdog::Hub;

    /// One end of a world of processes, with the watchdog of this one. Called by all ranks.
    pub(super) fn watched(mpi: Mpi, config: &Config) -> Result<Communicator> {
        let mut comm = Communicator::agreed(Transport::Mpi(Box::new(mpi)), config)?;
        let roll = comm.roll().clone();
        let mut card = Card::of_this_process(roll.members()[0]);
        let is_hub = config.lookout && comm.rank() == 0 && roll.members().len() < comm.ranks();
        let hub = is_hub.then(|| Hub::open(&mut card, &Network::from_environment())).transpose().unwrap_or_else(|error| {
            say(&format!(
                "unisono: rank 0 cannot listen for the other nodes ({error}): failures there are seen by deadlines \
                 alone\n"
            ));
            None
        });
        let cards = gathered(&mut comm, &card)?;
        let (rolls, warn_after, kind) = (vec![roll], config.warn, Kind::Processes);
        let watchdog = Arc::new(Watchdog::start(Watched { rolls, cards, hub, warn_after, kind })?);
        let report = watchdog.reports()[0].clone();
        comm.guard(watchdog, report);
        comm.begin();
        Ok(comm)
    }

    /// The cards of all ranks.
    fn gathered(comm: &mut Communicator, card: &Card) -> Result<Cards> {
        let (rank, ranks) = (comm.rank(), comm.ranks());
        let mut words = vec![0_u64; ranks * Card::WORDS];
        words[rank * Card::WORDS..][..Card::WORDS].copy_from_slice(&card.to_words());
        let call = Call { operation: Operation::AllGather, op: None, dtype: DType::U64, count: words.len() };
        // By an algorithm that all know before they know any constants.
        let choice = Choice::Algorithm(Algorithm::Butterfly);
        comm.collective(choice)?.run(&call, bytemuck::cast_slice_mut(&mut words))?;
        let cards = words.chunks(Card::WORDS).map(Card::from_words).collect::<Option<_>>();
        let other = || Error::Launch("ranks of different versions of unisono are in one world".to_owned());
        cards.map(Cards).ok_or_else(other)
    }
}
