//! Launch errors: detected at the start, reported in one line by one rank, and fatal where continuing would do harm.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::sys::{Comm, header_version, library_version};
use crate::config::{Config, Launcher, OnFailure, Starter};
use crate::error::{Error, Result};
use crate::size;
use crate::system::{self, FAILED, SHARED_FOLDER, SHARED_FOR_A_RANK_BYTES, print_line};
use crate::transport::bootstrap::{LEAST_TO_BEGIN, WARN_AFTER, not_begun};

/// Checks the environment before MPI starts, then watches its initialisation until the result is dropped.
///
/// # Errors
/// [`Error::Launch`] if the library has another ABI than the program was compiled for: its constants and handles differ.
pub(super) fn before_mpi(config: &Result<Config>) -> Result<Sender<()>> {
    let default = Config::default();
    let (config, launcher) = (config.as_ref().unwrap_or(&default), Launcher::detect());
    if config.on_failure == OnFailure::EndJob {
        system::raise_open_files();
    }
    let library_warning = library_fits()?;
    if config.warnings {
        let of_job = library_warning.filter(|_| launcher.rank.is_none_or(|rank| rank == 0));
        let of_node = shared_folder(launcher).filter(|_| launcher.local_rank == Some(0));
        of_job.iter().chain(&of_node).for_each(|warning| print_line(warning));
    }
    Ok(watch(launcher, config.timeout))
}

/// Ends this process unless the result is dropped in time: `MPI_Init` blocks without a deadline.
fn watch(launcher: Launcher, timeout: Duration) -> Sender<()> {
    let (timeout, (done, ended)) = (timeout.max(LEAST_TO_BEGIN), channel());
    let report = move |waited| {
        let rank = launcher.rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
        let ranks =
            launcher.ranks.map_or_else(|| "all ranks".to_owned(), |ranks| format!("all {ranks} ranks"));
        let question = "does each process that was launched start unisono's communicator, and do all nodes reach each other?";
        not_begun(&format!("{rank} on {}", system::host()), waited, &ranks, question)
    };
    let watch = move || {
        if ended.recv_timeout(WARN_AFTER) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        if launcher.rank.is_none_or(|rank| rank == 0) {
            print_line(&report(WARN_AFTER));
        }
        if ended.recv_timeout(timeout.saturating_sub(WARN_AFTER)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        print_line(&format!("{}; this process gives up", report(timeout)));
        signal_hook::low_level::exit(FAILED)
    };
    // Without a thread there is no timeout, which is no reason to fail.
    let _ = std::thread::Builder::new().name("unisono launch".into()).spawn(watch);
    done
}

/// Returns the `mpirun` of the MPI with this version, if it is known. MPICH and its derivatives share one, and an ABI.
fn mpirun_of(version: &str) -> Option<Starter> {
    let children = ["MPICH", "Intel", "MVAPICH", "CRAY", "ParaStation"];
    if version.starts_with("Open MPI") {
        Some(Starter::OpenMpi)
    } else {
        children.iter().any(|child| version.contains(child)).then_some(Starter::Mpich)
    }
}

fn srun_of(version: &str) -> &'static str {
    match mpirun_of(version) {
        Some(Starter::OpenMpi) => "srun --mpi=pmix",
        Some(_) => "srun --mpi=pmi2",
        None => "srun",
    }
}

/// Compares the library with the one that the program was compiled for; returns a warning if they differ harmlessly.
fn check_library(compiled: &str, running: &str) -> Result<Option<String>> {
    if compiled.is_empty() || compiled == running {
        return Ok(None);
    }
    let text = format!("this program was compiled for {compiled}, and runs with {running}");
    match (mpirun_of(compiled), mpirun_of(running)) {
        (Some(one), Some(other)) if one != other => Err(Error::Launch(format!(
            "{text}, which has a different ABI: recompile it (MPICC names the compiler), or check LD_LIBRARY_PATH and \
             LD_PRELOAD"
        ))),
        _ => Ok(Some(format!("{text}; if that fails, recompile it"))),
    }
}

/// Like [`check_library`], for this program, as `unisono doctor` reports it.
pub(crate) fn library_fits() -> Result<Option<String>> {
    check_library(&header_version(), &library_version())
}

/// Returns a warning if the folder for MPI's shared memory is too small for the ranks of this node.
fn shared_folder(launcher: Launcher) -> Option<String> {
    let ranks = launcher.local_ranks.filter(|&ranks| ranks > 1)? as u64;
    let free = system::free_bytes(Path::new(SHARED_FOLDER)).unwrap_or(0);
    let needed = ranks * SHARED_FOR_A_RANK_BYTES;
    (free < needed).then(|| {
        format!(
            "{SHARED_FOLDER} on {} has {} free, and MPI keeps up to {} there for {ranks} ranks: it may be slow, or not begin \
             at all (containers: --shm-size)",
            system::host(),
            size::approximate(free),
            size::approximate(needed)
        )
    })
}

/// Refuses to run as several worlds of one rank, which happens if the launcher belongs to another MPI.
pub(super) fn check_world() -> Result<()> {
    let world = Comm::world();
    check_launch(world.rank()?, world.ranks()?, Launcher::detect(), &library_version())
}

fn check_launch(rank: usize, ranks: usize, launcher: Launcher, library: &str) -> Result<()> {
    // In a program that attaches, other software may have set RANK and WORLD_SIZE.
    let Some(starter) = launcher.starter.filter(|&starter| starter != Starter::Variables) else {
        return Ok(());
    };
    // Several Slurm steps may form one world, and each reports only its own count.
    let is_all = matches!(starter, Starter::OpenMpi | Starter::Mpich);
    let fits = |launched: usize| launched == ranks || (!is_all && launched < ranks);
    let wrong_rank = launcher.ranks.is_none() && ranks == 1 && launcher.rank.is_some_and(|own| own != rank);
    if launcher.ranks.is_none_or(fits) && !wrong_rank {
        return Ok(());
    }
    let launched = launcher.ranks.map_or_else(|| "several".to_owned(), |launched| launched.to_string());
    let advice = match (starter, mpirun_of(library)) {
        (Starter::Slurm, Some(_)) => format!(
            "start it by `{}` (`srun --mpi=list` lists the options), or by the mpirun of {library}",
            srun_of(library)
        ),
        (Starter::OpenMpi | Starter::Mpich, Some(own)) if own != starter => format!(
            "the launcher belongs to another MPI: start it by the mpirun of {library}, or compile it for the launcher's (MPICC \
             names the compiler)"
        ),
        _ => format!(
            "the launcher belongs to another MPI, or to another installation of it: start it by the mpirun of {library}"
        ),
    };
    Err(Error::Launch(format!(
        "{} started {launched} processes, but this program's MPI ({library}) sees a world of {ranks}: {advice}",
        starter.name()
    )))
}

/// Returns a warning for a Slurm job with several tasks in which this process is a world of one rank.
pub(crate) fn alone_in_job(ranks: usize, launcher: Launcher) -> Option<String> {
    let tasks = launcher.job_tasks.filter(|&tasks| tasks > 1 && ranks == 1)?;
    // `mpirun -n 1` is deliberate.
    if !matches!(launcher.starter, None | Some(Starter::Slurm)) {
        return None;
    }
    let srun = srun_of(&library_version());
    Some(format!(
        "this Slurm job has {tasks} tasks, but this process is a world of one: if all were meant, start it by `{srun}` or mpirun"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN_MPI: &str = "Open MPI v4.1.4";
    const MPICH: &str = "MPICH 4.0.2";

    fn launched(starter: Starter, ranks: Option<usize>) -> Launcher {
        Launcher { starter: Some(starter), rank: Some(1), ranks, ..Launcher::default() }
    }

    fn refusal(ranks: usize, launcher: Launcher, library: &str) -> String {
        check_launch(0, ranks, launcher, library).unwrap_err().to_string()
    }

    #[test]
    fn foreign_launcher_is_refused_with_both_names() {
        let error = refusal(1, launched(Starter::Mpich, Some(4)), OPEN_MPI);
        assert!(error.contains("MPICH") && error.contains("mpirun of Open MPI v4.1.4"), "{error}");
        let error = refusal(1, launched(Starter::OpenMpi, Some(4)), MPICH);
        assert!(error.contains("Open MPI's mpirun started 4") && error.contains("MPICH 4.0.2"), "{error}");
        assert!(refusal(1, launched(Starter::OpenMpi, Some(4)), OPEN_MPI).contains("another installation"));
        // The number is unknown, but there are several.
        assert!(refusal(1, launched(Starter::Other, None), MPICH).contains("started several"));
        assert!(check_launch(1, 4, launched(Starter::OpenMpi, Some(4)), OPEN_MPI).is_ok());
        assert!(check_launch(0, 1, Launcher::default(), OPEN_MPI).is_ok());
    }

    #[test]
    fn srun_without_pmi_is_refused_with_the_right_command() {
        let launcher = launched(Starter::Slurm, Some(4));
        assert!(refusal(1, launcher, OPEN_MPI).contains("srun --mpi=pmix"));
        assert!(refusal(1, launcher, MPICH).contains("srun --mpi=pmi2"));
        // Two steps that form one world.
        assert!(check_launch(1, 6, launcher, OPEN_MPI).is_ok());
    }

    #[test]
    fn single_process_in_a_job_of_several_is_warned_about() {
        let job = Launcher { job_tasks: Some(8), ..Launcher::default() };
        assert!(alone_in_job(1, job).unwrap().contains("8 tasks"));
        assert_eq!(alone_in_job(8, job), None);
        let deliberate = Launcher { starter: Some(Starter::OpenMpi), ..job };
        assert_eq!(alone_in_job(1, deliberate), None);
    }

    #[test]
    fn library_of_another_family_is_refused_and_another_version_is_warned_about() {
        assert!(check_library(OPEN_MPI, OPEN_MPI).unwrap().is_none());
        assert!(check_library(OPEN_MPI, "Open MPI v5.0.11").unwrap().unwrap().contains("v5.0.11"));
        assert!(check_library(MPICH, "Intel(R) MPI Library 2021.8").unwrap().is_some());
        let refused = check_library(OPEN_MPI, MPICH).unwrap_err().to_string();
        assert!(refused.contains(OPEN_MPI) && refused.contains(MPICH), "{refused}");
    }
}
