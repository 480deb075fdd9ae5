//! Checkpoints: a run's parameters, optimizer state and position. A kill at any moment or a full disk costs only the steps since the last checkpoint.
//!
//! A [`Store`] is a directory with a subdirectory per checkpoint, `step-0000001234`, that holds `parameters.safetensors`, `optimizer.safetensors` and
//! `state.json`. A checkpoint is written under a temporary name, and renamed once all of it is on the disk. Only then are older ones deleted. Reading
//! verifies every byte.
//!
//! ```
//! use unisono_train::checkpoint::{Checkpoint, Store, Tensor, load_newest};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let weight = Tensor { name: "weight".into(), shape: vec![2, 1], values: vec![1.0, 2.0] };
//! let checkpoint = Checkpoint { step: 7, state: "epoch 3".to_string(), parameters: vec![weight], optimizer: vec![] };
//! let mut store = Store::open(directory, 2)?;
//! store.save_in_background(checkpoint.clone())?;
//! store.wait()?;
//!
//! let loaded = load_newest::<String>(directory)?.expect("there is one");
//! assert_eq!(loaded.checkpoint, checkpoint);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod files;
mod load;
mod store;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use unisono_collectives::Rank;

pub use load::{Loaded, load, load_newest, newest_state};
pub(super) use load::{is_one, newest_step};
pub use store::Store;

/// A named array.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The name, unique in a list.
    pub name: String,
    /// The size of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, row-major.
    pub values: Vec<f32>,
}

/// Returns the name under which an optimizer's state for a parameter is saved.
pub fn moment_name(parameter: &str, moment: &str) -> String {
    format!("{parameter}:{moment}")
}

/// Returns the array that saves an optimizer's state for a parameter.
pub fn saved_moment(parameter: &str, moment: &str, values: Vec<f32>) -> Tensor {
    Tensor { name: moment_name(parameter, moment), shape: vec![values.len()], values }
}

/// The name that safetensors files do not allow for a tensor.
pub(super) const RESERVED: &str = "__metadata__";
/// The text before the number of a rank, in names of optimizer state that differs between ranks.
pub(super) const OF_RANK: &str = " of rank ";

/// Returns the name of an array of optimizer state that differs between ranks.
pub(super) fn of_rank(moment: &str, rank: Rank) -> String {
    if rank == 0 { moment.to_owned() } else { format!("{moment}{OF_RANK}{rank}") }
}

/// Returns the number that follows this text at the end of a name, if there is one.
pub(super) fn numbered(name: &str, text: &str) -> Option<usize> {
    name.rsplit_once(text)?.1.parse().ok()
}

/// The data that a run needs to resume as if it had not been interrupted.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint<S> {
    /// The number of steps made.
    pub step: u64,
    /// Any further state of the run. It must survive a round trip through JSON, so it must not contain infinities or NaN.
    pub state: S,
    /// The model's parameters.
    pub parameters: Vec<Tensor>,
    /// The optimizer state.
    pub optimizer: Vec<Tensor>,
}

impl<S> Checkpoint<S> {
    /// Panics if a tensor does not match its shape, or a file cannot hold its name.
    fn check(&self) {
        for tensors in [&self.parameters, &self.optimizer] {
            let mut names = HashSet::new();
            for Tensor { name, shape, values } in tensors {
                let count = shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
                assert!(
                    count == Some(values.len()),
                    "tensor `{name}` has {} values, but its shape is {shape:?}",
                    values.len()
                );
                assert!(names.insert(name), "two tensors have the name `{name}`");
                assert!(name != RESERVED, "no tensor may be called `{name}`: the format reserves it");
            }
        }
    }
}

/// The checkpoint with the lowest training loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lowest {
    /// The number of steps made.
    pub step: u64,
    /// The mean loss of the next step, which is computed with the saved parameters.
    pub loss: f64,
}

/// The times at which to save a checkpoint: after a number of steps or after some time, whichever comes first. If neither is set, none is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct When {
    /// At every step that is a multiple of this.
    pub every_steps: Option<u64>,
    /// When this much time has passed since the last one.
    pub every: Option<Duration>,
}

impl When {
    /// Returns whether a checkpoint is due after `step` steps. `since_last` is the time since the last checkpoint or, before the first one, since the
    /// start.
    ///
    /// Ranks must not decide separately by time, because their clocks differ.
    pub fn due(&self, step: u64, since_last: Duration) -> bool {
        let by_steps = self.every_steps.is_some_and(|every| step > 0 && step.is_multiple_of(every));
        by_steps || self.every.is_some_and(|every| since_last >= every)
    }
}

/// The reason why a checkpoint could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each error's sentence names its fields")]
pub enum CheckpointError {
    /// The directory cannot be used.
    #[error(
        "cannot keep checkpoints in `{}`: {error}; expected a directory that this user may write to",
        path.display()
    )]
    Directory { path: PathBuf, error: io::Error },
    /// Another run saves to the same directory.
    #[error(
        "another process is saving checkpoints to `{}`: wait for it to end, or choose another directory",
        path.display()
    )]
    Busy { path: PathBuf },
    /// A checkpoint could not be written. Older ones are untouched.
    #[error("cannot write `{}`: {error}; {}; older checkpoints are untouched", path.display(), advice(error))]
    Write { path: PathBuf, error: io::Error },
    /// A value is infinite or NaN. A checkpoint of a diverged run does not replace earlier ones, which are untouched.
    #[error(
        "`{tensor}` holds {found} after step {step}, which is not saved: expected finite values; older checkpoints are untouched"
    )]
    NotFinite { tensor: String, found: f32, step: u64 },
    /// An older checkpoint could not be deleted. After a save, this is only a warning.
    #[error("cannot remove the old checkpoint `{}`: {error}; remove it by hand", path.display())]
    Remove { path: PathBuf, error: io::Error },
    /// The state cannot be stored. Saving detects this, so that loading does not fail later.
    #[error(
        "the state of step {step} cannot be stored as JSON: {error}; check that it contains no infinite or NaN \
         numbers"
    )]
    State { step: u64, error: serde_json::Error },
    /// The state is too large. Saving detects this, so that loading does not fail later.
    #[error(
        "the state of step {step} has {bytes} bytes as JSON: expected at most {}; older checkpoints are untouched",
        files::MOST_TEXT_BYTES
    )]
    StateTooLarge { step: u64, bytes: usize },
    /// A file or directory could not be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file is damaged, or not part of a checkpoint.
    #[error("`{}` is not a complete checkpoint file: {why}; restore it, or use another checkpoint", path.display())]
    Broken { path: PathBuf, why: String },
    /// There are checkpoints, but none can be loaded. The newest comes first.
    #[error("no checkpoint in `{}` can be loaded: {}", directory.display(), listed(passed_over))]
    NoneWhole { directory: PathBuf, passed_over: Vec<PassedOver> },
}

/// A checkpoint that cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Its directory.
    pub path: PathBuf,
    /// The problem.
    pub why: String,
}

fn listed(passed_over: &[PassedOver]) -> String {
    let each = passed_over.iter().map(|PassedOver { path, why }| format!("{}: {why}", path.display()));
    each.collect::<Vec<_>>().join("; ")
}

/// Returns advice after a failed write.
pub(super) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "its disk is full: free space on it, or choose another directory",
        io::ErrorKind::QuotaExceeded => {
            "the user's disk quota is exceeded: free space, or choose another directory"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on file size (ulimit -f)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "grant this user write permission, or choose another directory"
        }
        _ => "check the disk, or choose another directory",
    }
}

impl CheckpointError {
    fn directory(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Directory { path: path.into(), error }
    }

    fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Write { path: path.into(), error }
    }

    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Read { path: path.into(), error }
    }

    fn broken(path: &Path, why: impl Into<String>) -> Self {
        Self::Broken { path: path.into(), why: why.into() }
    }
}

#[cfg(test)]
mod tests;
