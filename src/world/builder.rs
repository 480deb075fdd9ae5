//! [`Builder`]: the settings and the origin of a world.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use unisono_collectives::Topology;

use super::{on_threads, over_processes, over_threads};
use crate::communicator::{Communicator, check_phases};
use crate::config::{
    Config, Constants, Launcher, OnFailure, Starter, bootstrap_folder, job, rendezvous, secret,
};
use crate::control::Hidden;
use crate::error::{Error, Result};
use crate::select::Choice;
#[cfg(feature = "mpi")]
use crate::transport::mpi;
use crate::transport::{Bootstrap, Fabric, Joining, LEAST_TO_BEGIN, Rendezvous};

/// Entry point: [`Unisono::builder`].
#[derive(Debug, Clone, Copy)]
pub struct Unisono;

impl Unisono {
    /// Configures a world. Settings that the program does not set come from the environment (`UNISONO_TIMEOUT_S` and others), or
    /// are the defaults.
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

/// Configures and creates a world: setters first, then one of [`detect`](Self::detect), `mpi`, `attach`,
/// [`processes`](Self::processes) and [`threads`](Self::threads), which determines the origin of its ranks.
#[derive(Default)]
#[must_use]
pub struct Builder {
    algorithm: Option<Choice>,
    timeout: Option<Duration>,
    tuning: Option<PathBuf>,
    on_failure: OnFailure,
    nodes: Option<Topology>,
    ignores_environment: bool,
    is_unobserved: bool,
    bootstrap: Option<Box<dyn Bootstrap>>,
    /// The reason why this rank refuses to take part.
    refusal: Option<String>,
}

impl Builder {
    /// Sets the algorithm of all calls, as [`Communicator::set_choice`]. All ranks set the same.
    pub fn algorithm(self, choice: impl Into<Choice>) -> Self {
        Self { algorithm: Some(choice.into()), ..self }
    }

    /// Sets the time for which a rank waits for another, in the first call too, as [`Communicator::set_timeout`].
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets the file of measured constants, as written by `unisono tune`. All ranks use rank 0's file.
    pub fn tuning(self, file: impl Into<PathBuf>) -> Self {
        Self { tuning: Some(file.into()), ..self }
    }

    /// Sets the effect of a failure on this program. By default calls return errors, and no process ends.
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Declares the nodes of the ranks, to test hierarchical algorithms on one machine (`UNISONO_NODES`).
    pub fn nodes(self, nodes: Topology) -> Self {
        Self { nodes: Some(nodes), ..self }
    }

    /// Sets the bootstrap by which ranks find each other, for [`Builder::processes`] and [`Builder::detect`].
    pub fn bootstrap(self, bootstrap: impl Bootstrap + 'static) -> Self {
        Self { bootstrap: Some(Box::new(bootstrap)), ..self }
    }

    /// Ignores the `UNISONO_…` variables.
    pub fn ignore_environment(self) -> Self {
        Self { ignores_environment: true, ..self }
    }

    /// Collects no metrics and traces of this world, even if the environment enables them. An additional world of a launched process needs it
    /// if its rank differs from the launched one: it would write to the files of another process.
    pub fn unobserved(self) -> Self {
        Self { is_unobserved: true, ..self }
    }

    /// Makes this rank refuse to join the world. All ranks get the reason.
    pub(crate) fn refuse(self, why: &str) -> Self {
        Self { refusal: Some(why.to_owned()), ..self }
    }

    pub(super) fn config(&self) -> Result<Config> {
        if let Some(why) = &self.refusal {
            return Err(Error::Setting(why.clone()));
        }
        let config =
            if self.ignores_environment { Ok(Config::default()) } else { Config::from_environment() };
        let mut config = config?;
        config.on_failure = self.on_failure;
        if let Some(choice) = &self.algorithm {
            check_phases(choice)?;
            config.algorithm = Some(choice.to_string());
        }
        if self.is_unobserved {
            (config.metrics, config.trace) = (None, None);
        }
        if let Some(timeout) = self.timeout {
            (config.timeout, config.first_timeout) = (timeout, timeout);
        }
        if let Some(nodes) = &self.nodes {
            config.nodes = Some(nodes.clone());
        }
        if let Some(file) = &self.tuning {
            config.constants = Constants::File(file.clone());
        }
        Ok(config)
    }

    /// Joins the launched world: under `mpirun` as `mpi`, under a launcher that sets `RANK` and `WORLD_SIZE` (`unisono launch`,
    /// `torchrun`) as [`processes`](Self::processes). Without a launcher, it creates a world of one rank.
    ///
    /// # Errors
    /// As `mpi` and [`processes`](Self::processes).
    pub fn detect(self) -> Result<Communicator> {
        if self.bootstrap.is_some() || Launcher::detect().starter == Some(Starter::Variables) {
            return self.processes();
        }
        #[cfg(feature = "mpi")]
        return self.mpi();
        // The processes of an MPI launcher form a world on one machine.
        #[cfg(not(feature = "mpi"))]
        match Launcher::detect().ranks {
            Some(_) => self.processes(),
            None => self.bootstrap(Rendezvous::over(Vec::new(), (0, 1), Duration::ZERO)).processes(),
        }
    }

    /// Initialises MPI and joins the world launched by `mpirun`. Without `mpirun`, it creates a world of one rank.
    ///
    /// Call it once, from the main thread of every process. Dropping the communicator finalises MPI, except after a failure.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is already initialised, the launcher belongs to another MPI than the program, or ranks are
    /// different programs; [`Error::Setting`], on all ranks, for settings that are invalid or differ between ranks where they
    /// must not; [`Error::Mpi`] if MPI fails.
    #[cfg(feature = "mpi")]
    pub fn mpi(self) -> Result<Communicator> {
        let (fabric, config) = mpi::init(self.config())?;
        over_processes(fabric, &config)
    }

    /// Joins a communicator of an MPI that the program has initialised.
    ///
    /// It is duplicated (`MPI_Comm_dup`), so that messages of the library and the program never match, and MPI is not finalised
    /// here. All ranks of the communicator call it. Drop the result before finalising MPI.
    ///
    /// A rank that waits in a call of this library lets MPI make progress on messages of the program. With `MPI_THREAD_SERIALIZED`,
    /// no other thread may therefore call MPI during such a call, nor while one is in flight.
    ///
    /// Even with [`OnFailure::ReturnError`], a call that fails between nodes while MPI may still write to its buffer ends the
    /// job: returning the buffer would be unsound.
    ///
    /// # Errors
    /// [`Error::Launch`] if MPI is not initialised, or is finalised, and for an intercommunicator; otherwise as `mpi`.
    #[cfg(feature = "mpi")]
    pub fn attach(
        self,
        communicator: &impl ::mpi::raw::AsRaw<Raw = ::mpi::ffi::MPI_Comm>,
    ) -> Result<Communicator> {
        let (fabric, config) = mpi::attach(communicator.as_raw(), self.config())?;
        over_processes(fabric, &config)
    }

    /// Joins a world of processes, which need no MPI. Ranks of one machine share memory, and those of several connect over TCP.
    ///
    /// Ranks find each other by a [bootstrap](Self::bootstrap). The default one reads `RANK` and `WORLD_SIZE` from the launcher and
    /// uses the folder `UNISONO_BOOTSTRAP_DIR`. Without that, ranks of one machine use a folder shared by all processes that
    /// `torchrun` or a session started with the same `MASTER_PORT`. Ranks of several machines (`LOCAL_WORLD_SIZE` is less than
    /// `WORLD_SIZE`) connect to rank 0 at the port after `MASTER_PORT` of `MASTER_ADDR`, where only ranks with the same
    /// `UNISONO_SECRET` are admitted.
    ///
    /// # Errors
    /// [`Error::Launch`] if there is no launcher, or if ranks do not arrive, are different programs, or cannot share memory or
    /// connect; [`Error::Aborted`] if a rank ends meanwhile; [`Error::Setting`], on all ranks, for settings that are invalid or differ
    /// between ranks where they must not.
    pub fn processes(mut self) -> Result<Communicator> {
        let mut bootstrap = match self.bootstrap.take() {
            Some(bootstrap) => bootstrap,
            None => launched(&self.config())?,
        };
        // Dropping the bootstrap removes its files, which no rank needs once all have joined.
        self.processes_over(&mut *bootstrap)
    }

    /// Joins a world of processes by a bootstrap that is only borrowed; public for `unisono-strategies`.
    #[doc(hidden)]
    pub fn processes_over(self, bootstrap: &mut dyn Bootstrap) -> Result<Communicator> {
        let (transport, config) = Fabric::processes(bootstrap, self.config())?;
        over_processes(transport, &config)
    }

    /// Returns the communicators of a world of `ranks` threads in this process, rank 0 first. Move each to its own thread.
    ///
    /// # Errors
    /// [`Error::Setting`] for an invalid environment variable, and [`Error::Unsupported`] for an algorithm that is not available, such
    /// as MPI's own collectives.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn threads(self, ranks: usize) -> Result<Vec<Communicator>> {
        let config = self.config()?;
        over_threads(Communicator::of_threads(Fabric::threads(ranks)?, &config)?, &config)
    }

    /// Runs `main` on `ranks` threads, each with its communicator of a new world of these settings, and returns the results, rank 0
    /// first.
    ///
    /// ```
    /// use unisono::{OnFailure, Unisono};
    ///
    /// # fn main() -> unisono::Result<()> {
    /// // If one rank fails, so does this program.
    /// let ended = Unisono::builder().on_failure(OnFailure::EndJob).on_threads(2, |mut comm| comm.barrier())?;
    /// assert!(ended.iter().all(Result::is_ok));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Before any rank starts: as [`Builder::threads`], and [`Error::Launch`] if the system does not provide the threads.
    ///
    /// # Panics
    /// If `ranks` is 0, or a rank panics.
    pub fn on_threads<R: Send>(
        self,
        ranks: usize,
        main: impl Fn(Communicator) -> R + Sync,
    ) -> Result<Vec<R>> {
        on_threads(self.threads(ranks)?, main)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("config", &self.config()).finish_non_exhaustive()
    }
}

/// Returns the default bootstrap, for processes numbered by a launcher.
fn launched(config: &Result<Config>) -> Result<Box<dyn Bootstrap>> {
    let launcher = Launcher::detect();
    let Some(world) = launcher.rank.zip(launcher.ranks).filter(|(rank, ranks)| rank < ranks) else {
        return Err(Error::Launch(
            "RANK and WORLD_SIZE are missing or invalid: set them for each process, RANK from 0 to WORLD_SIZE - 1, or start it by \
             `unisono launch -n N -- PROGRAM`"
                .to_owned(),
        ));
    };
    let timeout = config.as_ref().map_or_else(|_| Config::default().timeout, |config| config.timeout);
    let timeout = timeout.max(LEAST_TO_BEGIN);
    let (rank, ranks) = world;
    let secret = secret();
    // Rank 1 and one rank of each machine report that they wait for rank 0.
    let reports = rank == 1 || launcher.local_rank.is_none_or(|rank| rank == 0);
    let joining = Joining { world, timeout, secret: Hidden(&secret[..]), reports };
    let bootstrap = if let Some(folder) = bootstrap_folder() {
        Rendezvous::in_folder(&folder, joining)
    } else if let Some(here) = launcher.local_ranks.filter(|&local_ranks| local_ranks < ranks) {
        let address = rendezvous().ok_or_else(|| {
            Error::Launch(format!(
                "rank {rank} is one of {ranks}, of which {here} are on this machine: for ranks of several machines to meet, set \
                 MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a port there (torchrun does), or UNISONO_BOOTSTRAP_DIR to \
                 a folder that all of them share"
            ))
        })?;
        Rendezvous::new(&address, joining)
    } else {
        Rendezvous::of_job(&std::env::temp_dir(), &job(launcher.starter), joining)
    };
    Ok(Box::new(bootstrap?))
}
