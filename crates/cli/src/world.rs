//! The ranks of a command: launched processes, or threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use clap::Args;
use unisono::config::Launcher;
#[cfg(feature = "candle")]
use unisono::config::share_cores;
use unisono::{Communicator, OnFailure, Unisono, while_waiting};

use super::values::{MOST_RANKS, whole};
use super::{Failure, is_reporter, refused};

/// The flag by which signals stop the command, if it handles them.
pub(super) static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The reason and the remedy where formats between nodes would have no effect.
pub(super) const SHARE_A_NODE: &str =
    "all ranks share a node: start ranks on several nodes, or declare nodes, such as UNISONO_NODES=1,1";

/// Options that choose the ranks.
#[derive(Debug, Args)]
pub(super) struct World {
    /// Run N ranks as threads of this process, without a launcher
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_RANKS))]
    threads: Option<usize>,
}

impl World {
    /// Returns the number of ranks on this node, as far as it is known before the ranks connect.
    #[cfg(feature = "candle")]
    pub(super) fn local_ranks(&self) -> usize {
        let launched = Launcher::detect().local_ranks.unwrap_or(1);
        self.threads.unwrap_or(launched)
    }

    /// Returns whether there is only one rank, without a launcher.
    #[cfg(feature = "candle")]
    pub(super) fn is_alone(&self) -> bool {
        Launcher::detect().rank.is_none() && self.local_ranks() == 1
    }

    /// As [`World::run`], for a model that computes. Ranks divide the cores of their node among them, and a single rank without a launcher needs no
    /// MPI.
    #[cfg(feature = "candle")]
    pub(super) fn run_or_alone(
        &self,
        body: impl Fn(&mut Communicator) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        // SAFETY: the command line has been read, and no thread has been started yet.
        unsafe { share_cores(self.local_ranks()) };
        if self.is_alone() {
            return unisono::threads(1, |mut comm| body(&mut comm)).swap_remove(0);
        }
        self.run(body)
    }

    /// As [`World::run`], for ranks that continue without a lost rank.
    #[cfg(feature = "candle")]
    pub(super) fn run_elastic(
        &self,
        body: impl Fn(&mut Communicator) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.check_threads()?;
        body(&mut begin(|| Unisono::builder().on_failure(OnFailure::ReturnError).processes())?)
    }

    /// Runs `body` on every rank. If one fails, all end, and the cause is reported.
    pub(super) fn run(
        &self,
        body: impl Fn(&mut Communicator) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let Some(ranks) = self.threads else {
            return guarded(&mut begin(unisono::init)?, &body);
        };
        self.check_threads()?;
        let world = Unisono::builder().on_failure(OnFailure::EndJob);
        let results = world.on_threads(ranks, |mut comm| guarded(&mut comm, &body));
        let results = results.map_err(|error| Failure::BadInput(error.to_string()))?;
        let failures = results.into_iter().filter_map(Result::err);
        // The rank that reports the error takes precedence over ranks that leave the report to it.
        failures.min_by_key(|failure| matches!(failure, Failure::ReportedElsewhere)).map_or(Ok(()), Err)
    }

    fn check_threads(&self) -> Result<(), Failure> {
        let launched = Launcher::detect().ranks.filter(|&processes| processes > 1);
        let Some((ranks, processes)) = self.threads.zip(launched) else { return Ok(()) };
        Err(refused(format!(
            "--threads {ranks} would start a separate world in each of the {processes} launched processes: remove --threads \
             or the launcher"
        )))
    }
}

fn guarded(
    comm: &mut Communicator,
    body: impl Fn(&mut Communicator) -> Result<(), Failure>,
) -> Result<(), Failure> {
    body(comm).map_err(|failure| match failure {
        Failure::Error(cause) => {
            comm.fail(&cause);
            Failure::Reported
        }
        failure => failure,
    })
}

/// The cause that rank 0 sends to the others if it is stopped.
const UNBEGUN: &str = "it was stopped before all ranks began";

/// Waits for the other ranks to begin, or for a signal that stops the command.
fn begin(world: impl FnOnce() -> unisono::Result<Communicator>) -> Result<Communicator, Failure> {
    fn is_stopped() -> bool {
        STOP.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
    let wanted = || if is_stopped() { Err(UNBEGUN.to_owned()) } else { Ok(()) };
    while_waiting(wanted, world).map_err(|error| match error {
        _ if is_stopped() => Failure::Stopped,
        unisono::Error::Aborted { ref cause, .. } if cause == UNBEGUN => Failure::Stopped,
        // A retry may succeed. The first of the ranks that are left reports the error.
        error @ unisono::Error::Aborted { by, .. } => {
            let first = usize::from(by == 0);
            let reports = Launcher::detect().rank.is_none_or(|rank| rank == first);
            if reports { error.into() } else { Failure::Reported }
        }
        error => Failure::refusal(is_reporter(), error),
    })
}
