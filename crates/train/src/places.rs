//! Checks at the start of a run: the files that it writes, its settings, and the run that it resumes.

use std::fs;
use std::io;
use std::path::Path;

use crate::checkpoint;
use crate::run::check_settings;
use crate::{Checkpoints, Progress, Resumed, RunSettings, TrainError, agree};
use unisono::Communicator;

/// Checks the files of a run, its settings that no strategy supports, and the global batch of the run that it resumes. `held_out` is the number of
/// the feed's evaluation batches. Called by all ranks.
///
/// # Errors
/// As [`check_outputs`]. [`TrainError::Setting`] for settings, and another global batch.
pub fn check_run(
    comm: &mut Communicator,
    settings: &RunSettings,
    held_out: usize,
    resumed: Option<&Resumed>,
) -> Result<(), TrainError> {
    let RunSettings { checkpoints, log_directory, .. } = settings;
    let kept = checkpoints.as_ref();
    let resumes = |(resumed, kept): (&Resumed, &Checkpoints)| resumed.is_in(&kept.directory);
    check_outputs(comm, kept, resumed.zip(kept).is_some_and(resumes), log_directory.as_deref())?;
    agree(comm, check_settings(settings, held_out))?;
    resumed.map_or(Ok(()), |resumed| resumed.check_batch(settings.global_batch))
}

/// Checks the files that rank 0 writes, and leaves no files behind: checkpoints and TensorBoard files. `resumes` is true if the run resumes from the
/// directory of checkpoints; only rank 0's value counts. Called by all ranks.
///
/// # Errors
/// [`TrainError::Occupied`] if another run's checkpoints are there, [`TrainError::Setting`] if a file or directory cannot be
/// written to.
pub fn check_outputs(
    comm: &mut Communicator,
    checkpoints: Option<&Checkpoints>,
    resumes: bool,
    log_directory: Option<&Path>,
) -> Result<(), TrainError> {
    let look = || {
        if let Some(Checkpoints { directory, overwrites, .. }) = checkpoints {
            if checkpoint::is_one(directory) {
                let directory = directory.display();
                let why = format!(
                    "`{directory}` is itself a checkpoint: expected the directory that contains it, or a new one"
                );
                return Err(TrainError::Setting(why));
            }
            if !resumes
                && !overwrites
                && let Some(run) = run_in(directory)?
            {
                return Err(TrainError::Occupied { directory: directory.clone(), run });
            }
        }
        let Some(directory) = log_directory else { return Ok(()) };
        is_writable(directory).map_err(|error| {
            let directory = directory.display();
            TrainError::Setting(format!(
                "cannot write curves to `{directory}`: {error}; expected a directory that this user may write to"
            ))
        })
    };
    let looked = if comm.rank() == 0 { look() } else { Ok(()) };
    agree(comm, looked)
}

/// Describes the run whose checkpoints are in a directory, if there are any.
fn run_in(directory: &Path) -> Result<Option<String>, TrainError> {
    let Some(step) = checkpoint::newest_step(directory)? else { return Ok(None) };
    let progress = checkpoint::newest_state::<Progress>(directory).ok().flatten();
    let described = progress.and_then(|Progress { description, .. }| {
        let word = |name: &str| description[name].as_str().map(str::to_owned);
        Some(format!("{} on {}, ", word("model")?, word("data")?))
    });
    Ok(Some(format!("{}after {step} steps", described.unwrap_or_default())))
}

/// Verifies that a directory can be written to or, if missing, created.
fn is_writable(directory: &Path) -> io::Result<()> {
    let nothing = Path::new("");
    let above = directory.ancestors().map(|path| if path == nothing { Path::new(".") } else { path });
    let there = above.into_iter().find(|path| path.symlink_metadata().is_ok()).unwrap_or(nothing);
    if !there.metadata()?.is_dir() {
        let why = format!("`{}` is not a directory", there.display());
        return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
    }
    // Checking permissions is not enough, because some file systems permit no new files.
    let trial = there.join(format!(".unisono-{}", std::process::id()));
    fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_detects_unwritable_paths_and_leaves_no_files() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        std::fs::write(place("file"), "").unwrap();
        assert!(is_writable(&place("new/and/deep")).is_ok() && is_writable(directory.path()).is_ok());
        assert!(is_writable(Path::new("new")).is_ok(), "in the working directory");
        for wrong in [place("file"), place("file/below"), "/proc/new".into()] {
            assert!(is_writable(&wrong).is_err(), "{}", wrong.display());
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
