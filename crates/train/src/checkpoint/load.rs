//! Finds and reads checkpoints.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::files::{self, Sum};
use super::{Checkpoint, CheckpointError, PassedOver};

pub(super) const PARAMETERS: &str = "parameters.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "state.json";
/// The suffix of a checkpoint that gives its name to another one of its step. It is a valid checkpoint until the other one has the name.
pub(super) const REPLACED: &str = ".replaced";
/// The version of the format of `state.json`, and so of the whole checkpoint.
pub(super) const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Content<S> {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) parameters: Sum,
    pub(super) optimizer: Sum,
    pub(super) state: S,
}

/// The fields that all versions of `state.json` share.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A loaded checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded<S> {
    /// The checkpoint.
    pub checkpoint: Checkpoint<S>,
    /// Its directory.
    pub path: PathBuf,
    /// Newer checkpoints that cannot be loaded, newest first.
    pub passed_over: Vec<PassedOver>,
}

/// Loads the newest complete checkpoint in the directory of a [`Store`](super::Store). If the directory is itself a checkpoint, loads that. Returns
/// `None` if there is no such directory, or no checkpoint in it.
///
/// # Errors
/// [`CheckpointError::NoneWhole`] if there are checkpoints and all are damaged;
/// [`CheckpointError::Read`] if the directory cannot be read.
pub fn load_newest<S: DeserializeOwned>(directory: &Path) -> Result<Option<Loaded<S>>, CheckpointError> {
    newest(directory, load)
}

/// Reads the newest checkpoint that `read` can read.
pub(super) fn newest<S>(
    directory: &Path,
    read: impl Fn(&Path) -> Result<Checkpoint<S>, CheckpointError>,
) -> Result<Option<Loaded<S>>, CheckpointError> {
    if is_one(directory) {
        let checkpoint = read(directory)?;
        return Ok(Some(Loaded { checkpoint, path: directory.into(), passed_over: Vec::new() }));
    }
    'listed: loop {
        let mut passed_over = Vec::new();
        for (_, path) in checkpoints(directory)?.into_iter().rev() {
            match read(&path) {
                Ok(checkpoint) => return Ok(Some(Loaded { checkpoint, path, passed_over })),
                // A run has deleted it in the meantime, after it saved a newer one.
                Err(_) if !path.exists() => continue 'listed,
                Err(error) => passed_over.push(PassedOver { path, why: error.to_string() }),
            }
        }
        if passed_over.is_empty() {
            return Ok(None);
        }
        return Err(CheckpointError::NoneWhole { directory: directory.into(), passed_over });
    }
}

/// Loads one checkpoint from its directory.
///
/// # Errors
/// [`CheckpointError`] names the file that is missing, unreadable, or damaged.
pub fn load<S: DeserializeOwned>(path: &Path) -> Result<Checkpoint<S>, CheckpointError> {
    let content = content(path)?;
    Ok(Checkpoint {
        step: content.step,
        state: content.state,
        parameters: files::read_tensors(&path.join(PARAMETERS), &content.parameters)?,
        optimizer: files::read_tensors(&path.join(OPTIMIZER), &content.optimizer)?,
    })
}

/// Returns the state of the newest checkpoint, as [`load_newest`], but does not read its arrays, which may be damaged.
///
/// # Errors
/// As [`load_newest`].
pub fn newest_state<S: DeserializeOwned>(directory: &Path) -> Result<Option<S>, CheckpointError> {
    let read = |path: &Path| {
        let Content { step, state, .. } = content(path)?;
        Ok(Checkpoint { step, state, parameters: Vec::new(), optimizer: Vec::new() })
    };
    Ok(newest(directory, read)?.map(|found| found.checkpoint.state))
}

/// Returns the step of the newest checkpoint in a directory, also of a damaged one.
pub(crate) fn newest_step(directory: &Path) -> Result<Option<u64>, CheckpointError> {
    Ok(checkpoints(directory)?.pop().map(|(step, _)| step))
}

/// Returns whether a directory is itself a checkpoint, rather than a directory of checkpoints.
pub(crate) fn is_one(directory: &Path) -> bool {
    directory.join(STATE).exists()
}

fn content<S: DeserializeOwned>(path: &Path) -> Result<Content<S>, CheckpointError> {
    let file = path.join(STATE);
    let content = files::read_framed(&file)?;
    let wrong = |error: serde_json::Error| CheckpointError::broken(&file, error.to_string());
    let Version { format } = serde_json::from_str(&content).map_err(wrong)?;
    if format != FORMAT {
        let why = format!("its format is {format}, but this program reads only {FORMAT}");
        return Err(CheckpointError::broken(&file, why));
    }
    serde_json::from_str(&content).map_err(wrong)
}

pub(super) fn name(step: u64) -> String {
    format!("step-{step:010}")
}

/// Returns the name of a checkpoint's directory while another one takes its name.
pub(super) fn replaced_name(step: u64) -> String {
    format!(".{}{REPLACED}", name(step))
}

/// Returns the checkpoints in a directory, keyed by step. A replaced one counts while no other one of its step is in place.
pub(super) fn checkpoints(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(CheckpointError::read(directory))?,
    };
    for entry in entries {
        let path = entry.map_err(CheckpointError::read(directory))?.path();
        let Some(file_name) = path.file_name().and_then(OsStr::to_str) else { continue };
        let of_replaced = file_name.strip_prefix('.').and_then(|name| name.strip_suffix(REPLACED));
        let step = of_replaced.unwrap_or(file_name).strip_prefix("step-").and_then(|step| step.parse().ok());
        // Other names are not checkpoints.
        if let Some(step) = step
            && [name(step), replaced_name(step)].iter().any(|name| name == file_name)
        {
            found.push((step, of_replaced.is_some(), path));
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|&mut (step, ..)| step);
    Ok(found.into_iter().map(|(step, _, path)| (step, path)).collect())
}
