//! Errors of checkpoints.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

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
    /// The checkpoint is in place, but an older one could not be deleted.
    #[error("cannot remove the old checkpoint `{}`: {error}; remove it by hand", path.display())]
    Remove { path: PathBuf, error: io::Error },
    /// The state cannot be stored. Saving detects this, so that loading does not fail later.
    #[error(
        "the state of step {step} cannot be stored as JSON: {error}; check that it contains no infinite or NaN \
         numbers"
    )]
    State { step: u64, error: serde_json::Error },
    /// A file or directory could not be read.
    #[error("cannot read `{}`: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file is damaged, or not part of a checkpoint.
    #[error("`{}` is not a complete checkpoint file: {why}; restore it, or use another checkpoint", path.display())]
    Broken { path: PathBuf, why: String },
    /// There are checkpoints, but none can be loaded. The newest comes first.
    #[error("no checkpoint in `{}` can be loaded:{}", directory.display(), List(passed_over))]
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

struct List<'a>(&'a [PassedOver]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|PassedOver { path, why }| write!(f, "\n  {}: {why}", path.display()))
    }
}

/// Advice for a write error.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "its disk is full: free space on it, or keep checkpoints elsewhere",
        io::ErrorKind::QuotaExceeded => {
            "the user's disk quota is exceeded: free space, or keep checkpoints elsewhere"
        }
        io::ErrorKind::FileTooLarge => "raise the limit on file size (ulimit -f)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "grant this user write permission, or keep checkpoints elsewhere"
        }
        _ => "check the disk, or keep checkpoints elsewhere",
    }
}

impl CheckpointError {
    pub(super) fn directory(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Directory { path: path.into(), error }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Write { path: path.into(), error }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Read { path: path.into(), error }
    }

    pub(super) fn broken(path: &Path, why: impl Into<String>) -> Self {
        Self::Broken { path: path.into(), why: why.into() }
    }
}
