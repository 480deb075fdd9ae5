//! Finding and reading checkpoints.

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
/// The version of what is in `state.json`, and so of all.
pub(super) const FORMAT: u32 = 1;

/// What is in `state.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Content<S> {
    pub(super) format: u32,
    pub(super) step: u64,
    pub(super) parameters: Sum,
    pub(super) optimizer: Sum,
    pub(super) state: S,
}

/// What every version of `state.json` has in common.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

/// A checkpoint, and how it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded<S> {
    /// What was saved.
    pub checkpoint: Checkpoint<S>,
    /// Its directory.
    pub path: PathBuf,
    /// Newer ones that can not be loaded, the newest first.
    pub passed_over: Vec<PassedOver>,
}

/// Loads the newest checkpoint of a [`Store`](super::Store)'s directory that is whole; or the directory itself,
/// if it is a checkpoint. `None` if there is no such directory, or no checkpoint in it.
///
/// # Errors
/// [`CheckpointError::NoneWhole`] if there are checkpoints and each of them is broken;
/// [`CheckpointError::Read`] if the directory can not be read.
pub fn load_newest<S: DeserializeOwned>(directory: &Path) -> Result<Option<Loaded<S>>, CheckpointError> {
    if is_one(directory) {
        let checkpoint = load(directory)?;
        return Ok(Some(Loaded { checkpoint, path: directory.into(), passed_over: Vec::new() }));
    }
    let mut passed_over = Vec::new();
    for (_, path) in checkpoints(directory)?.into_iter().rev() {
        match load(&path) {
            Ok(checkpoint) => return Ok(Some(Loaded { checkpoint, path, passed_over })),
            Err(error) => passed_over.push(PassedOver { path, why: error.to_string() }),
        }
    }
    if passed_over.is_empty() {
        return Ok(None);
    }
    Err(CheckpointError::NoneWhole { directory: directory.into(), passed_over })
}

/// Loads one checkpoint from its own directory.
///
/// # Errors
/// [`CheckpointError`] names the file that is missing, unreadable, or not as it was written.
pub fn load<S: DeserializeOwned>(path: &Path) -> Result<Checkpoint<S>, CheckpointError> {
    let content = content(path)?;
    Ok(Checkpoint {
        step: content.step,
        state: content.state,
        parameters: files::read_tensors(&path.join(PARAMETERS), &content.parameters)?,
        optimizer: files::read_tensors(&path.join(OPTIMIZER), &content.optimizer)?,
    })
}

/// What the newest checkpoint in a directory says, without its arrays: its step, and its state if that can be read. `None`
/// if there is no checkpoint.
///
/// # Errors
/// [`CheckpointError::Read`] if the directory can not be read.
pub(crate) fn newest_state<S: DeserializeOwned>(
    directory: &Path,
) -> Result<Option<(u64, Option<S>)>, CheckpointError> {
    let newest = checkpoints(directory)?.pop();
    Ok(newest.map(|(step, path)| (step, content(&path).ok().map(|content| content.state))))
}

/// Whether a directory is itself a checkpoint, and not one that checkpoints are in.
pub(crate) fn is_one(directory: &Path) -> bool {
    directory.join(STATE).exists()
}

/// What is in a checkpoint's `state.json`.
fn content<S: DeserializeOwned>(path: &Path) -> Result<Content<S>, CheckpointError> {
    let file = path.join(STATE);
    let content = files::read_framed(&file)?;
    let wrong = |error: serde_json::Error| CheckpointError::broken(&file, error.to_string());
    let Version { format } = serde_json::from_str(&content).map_err(wrong)?;
    if format != FORMAT {
        let why = format!("its format is {format}, and this program reads only {FORMAT}");
        return Err(CheckpointError::broken(&file, why));
    }
    serde_json::from_str(&content).map_err(wrong)
}

/// The name of a checkpoint's directory.
pub(super) fn name(step: u64) -> String {
    format!("step-{step:010}")
}

/// The checkpoints in a directory, by their steps.
pub(super) fn checkpoints(directory: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries.map_err(CheckpointError::read(directory))?,
    };
    for entry in entries {
        let path = entry.map_err(CheckpointError::read(directory))?.path();
        let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-")?.parse().ok());
        // What has another name than we give is not ours.
        found.extend(step.filter(|&step| path.ends_with(name(step))).map(|step| (step, path)));
    }
    found.sort_unstable();
    Ok(found)
}
