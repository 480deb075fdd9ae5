//! How a program says what world it wants, and what it wants of it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use unisono_collectives::Rank;

use super::{over_processes, over_threads};
use crate::communicator::Communicator;
use crate::config::{Config, Launcher, OnFailure, Starter, bootstrap_folder, job};
use crate::error::{Error, Result};
use crate::select::Choice;
#[cfg(not(feature = "mpi"))]
use crate::transport::Alone;
#[cfg(feature = "mpi")]
use crate::transport::mpi::Mpi;
use crate::transport::{Bootstrap, Directory, Transport};

/// So long ranks may take to begin, however short the deadline of a collective is: programs are loaded, and take turns.
const LEAST_TO_BEGIN: Duration = Duration::from_secs(20);

/// The way into a world: [`Unisono::builder`].
#[derive(Debug, Clone, Copy)]
pub struct Unisono;

impl Unisono {
    /// What a program wants of its world. What it does not say, the environment says (`UNISONO_TIMEOUT_S` and others), and
    /// otherwise the defaults apply.
    ///
    /// ```
    /// use std::time::Duration;
    /// use unisono::{Algorithm, ReduceOp, Unisono};
    ///
    /// # fn main() -> unisono::Result<()> {
    /// // Under mpirun, torchrun, `unisono launch`, or alone: the ranks that were launched.
    /// let mut comm = Unisono::builder()
    ///     .algorithm(Algorithm::Ring)
    ///     .timeout(Duration::from_secs(60))
    ///     .detect()?;
    /// let mut gradients = vec![1.0_f32; 1000];
    /// comm.all_reduce(&mut gradients, ReduceOp::Sum)?;
    /// assert_eq!(gradients[0], comm.ranks() as f32);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }
}

/// What a program wants of a world: the setters say what, and the last call ([`detect`](Self::detect), `mpi`, `attach`,
/// [`processes`](Self::processes), [`threads`](Self::threads)) says where its ranks come from.
#[derive(Default)]
#[must_use]
pub struct Builder {
    algorithm: Option<Choice>,
    timeout: Option<Duration>,
    tuning: Option<PathBuf>,
    on_failure: OnFailure,
    ignores_environment: bool,
    bootstrap: Option<Box<dyn Bootstrap>>,
    /// Why this rank takes part only to say that it cannot.
    refusal: Option<String>,
}

impl Builder {
    /// The algorithm for all calls, as [`Communicator::set_choice`]. All ranks choose the same.
    pub fn algorithm(self, choice: impl Into<Choice>) -> Self {
        Self { algorithm: Some(choice.into()), ..self }
    }

    /// How long a rank waits for another, in its first call too, as [`Communicator::set_timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// The file of measured constants that `unisono tune` wrote. All ranks go by rank 0's.
    pub fn tuning(self, file: impl Into<PathBuf>) -> Self {
        Self { tuning: Some(file.into()), ..self }
    }

    /// What becomes of this program when a rank fails. By default calls return errors, and nothing ends.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// How the ranks find each other, for [`Builder::processes`] and [`Builder::detect`].
    pub fn bootstrap(self, bootstrap: impl Bootstrap + 'static) -> Self {
        Self { bootstrap: Some(Box::new(bootstrap)), ..self }
    }

    /// Goes by what the program says, and by defaults, whatever `UNISONO_…` variables are set.
    pub fn ignore_environment(self) -> Self {
        Self { ignores_environment: true, ..self }
    }

    /// Takes part in the world only to tell all ranks why this one cannot.
    pub(crate) fn refuse(self, why: &str) -> Self {
        Self { refusal: Some(why.to_owned()), ..self }
    }

    fn config(&self) -> Result<Config> {
        if let Some(why) = &self.refusal {
            return Err(Error::Setting(why.clone()));
        }
        let config =
            if self.ignores_environment { Ok(Config::default()) } else { Config::from_environment() };
        let mut config = config?;
        config.on_failure = self.on_failure;
        if let Some(choice) = &self.algorithm {
            config.algorithm = Some(choice.to_string());
        }
        if let Some(timeout) = self.timeout {
            (config.timeout, config.first_timeout) = (timeout, timeout);
        }
        if let Some(file) = &self.tuning {
            config.tuning = Some(file.clone());
        }
        Ok(config)
    }

    /// Takes part in the world that was launched: under `mpirun` as `mpi`, under whatever sets `RANK` and
    /// `WORLD_SIZE` (`unisono launch`, `torchrun`) as [`processes`](Self::processes). A world of one where nothing has launched
    /// this process.
    ///
    /// # Errors
    /// As those.
    pub fn detect(self) -> Result<Communicator> {
        if self.bootstrap.is_some() || Launcher::detect().starter == Some(Starter::Variables) {
            return self.processes();
        }
        self.by_mpi_or_alone()
    }

    #[cfg(feature = "mpi")]
    fn by_mpi_or_alone(self) -> Result<Communicator> {
        self.mpi()
    }

    /// Without MPI, what a launcher of MPI's starts is a world all the same, on one machine.
    #[cfg(not(feature = "mpi"))]
    fn by_mpi_or_alone(self) -> Result<Communicator> {
        match Launcher::detect().ranks {
            Some(_) => self.processes(),
            None => self.bootstrap(Alone).processes(),
        }
    }

    /// Initialises MPI and takes part in the world that `mpirun` launched; a world of one without `mpirun`.
    ///
    /// Called once, by the main thread of every process. The communicator finalises MPI when it is dropped, but after a failure.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is already initialised, the launcher belongs to another MPI than the program, or
    /// ranks are different programs; [`Error::Setting`], on all ranks, for settings that make no sense, or differ between ranks
    /// where they must not; [`Error::Mpi`] if MPI fails.
    #[cfg(feature = "mpi")]
    pub fn mpi(self) -> Result<Communicator> {
        let (mpi, config) = Mpi::init(self.config())?;
        over_processes(Transport::Mpi(Box::new(mpi)), &config)
    }

    /// Takes part in a communicator of an MPI that the program has initialised itself.
    ///
    /// It is duplicated, so that no message of ours meets one of yours, and MPI is never finalised here.
    /// Called by all ranks of the communicator. Drop the result before MPI is finalised.
    ///
    /// With [`OnFailure::ReturnError`] one thing still ends the job: a call that fails between nodes while MPI may write to its
    /// buffer. To give the buffer back would not be sound.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is not up; otherwise as [`mpi`](Self::mpi).
    #[cfg(feature = "mpi")]
    pub fn attach(
        self,
        communicator: &impl ::mpi::raw::AsRaw<Raw = ::mpi::ffi::MPI_Comm>,
    ) -> Result<Communicator> {
        let (mpi, config) = Mpi::attach(communicator.as_raw(), self.config())?;
        over_processes(Transport::Mpi(Box::new(mpi)), &config)
    }

    /// Takes part in a world of processes of this machine, which share memory and need no MPI.
    ///
    /// They find each other by a [bootstrap](Self::bootstrap). Without one, each process has a number and their count from its launcher
    /// (`RANK` and `WORLD_SIZE`), and they find each other in the folder that `UNISONO_BOOTSTRAP_DIR` names, or else in one of all that
    /// `torchrun` or a session has started with the same `MASTER_PORT`.
    ///
    /// # Errors
    /// [`Error::Launch`] if there is no launcher, ranks do not come, are different programs, or share no machine or memory;
    /// [`Error::Setting`], on all ranks, for settings that make no sense, or differ between ranks where they must not.
    pub fn processes(mut self) -> Result<Communicator> {
        let config = self.config();
        let mut bootstrap = match self.bootstrap.take() {
            Some(bootstrap) => bootstrap,
            None => Box::new(launched(&config)?),
        };
        let (transport, config) = Transport::processes(&mut *bootstrap, config)?;
        // What the bootstrap has left behind goes when all are there: it is dropped here.
        over_processes(transport, &config)
    }

    /// The ends of a world of `ranks` threads in this process, rank 0 first. Each goes to a thread of its own.
    ///
    /// # Errors
    /// [`Error::Setting`] for a variable of the environment that makes no sense.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn threads(self, ranks: usize) -> Result<Vec<Communicator>> {
        let config = self.config()?;
        over_threads(Communicator::of_threads(Transport::threads(ranks)?, &config)?, &config)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("config", &self.config()).finish_non_exhaustive()
    }
}

/// How the processes find each other that a launcher has numbered.
fn launched(config: &Result<Config>) -> Result<Directory> {
    let launcher = Launcher::detect();
    let Some(world) = launcher.rank.zip(launcher.ranks).filter(|(rank, ranks)| rank < ranks) else {
        return Err(Error::Launch(
            "RANK and WORLD_SIZE say nothing of a world: set them for each process, RANK from 0 to WORLD_SIZE - 1, or start it by \
             `unisono launch -n N -- PROGRAM`"
                .to_owned(),
        ));
    };
    check_one_machine(world, launcher.local_ranks)?;
    let timeout = config.as_ref().map_or_else(|_| Config::default().timeout, |config| config.timeout);
    let timeout = timeout.max(LEAST_TO_BEGIN);
    match bootstrap_folder() {
        Some(folder) => Directory::new(folder, world, timeout),
        None => Directory::of_job(&std::env::temp_dir(), &job(launcher.starter), world, timeout),
    }
}

/// # Errors
/// [`Error::Launch`] where ranks are on other machines too, which would be waited for in vain.
fn check_one_machine((rank, ranks): (Rank, usize), local_ranks: Option<usize>) -> Result<()> {
    match local_ranks.filter(|&local_ranks| local_ranks < ranks) {
        None => Ok(()),
        Some(here) => Err(Error::Launch(format!(
            "rank {rank} is one of {ranks}, of which {here} are on this machine: between machines, messages go through MPI; start the \
             program by mpirun"
        ))),
    }
}
