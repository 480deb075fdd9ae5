//! Saves checkpoints.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use unisono_data::sync_directory;

use super::load::{
    Content, FORMAT, OPTIMIZER, PARAMETERS, REPLACED, STATE, checkpoints, name, replaced_name,
};
use super::{Checkpoint, CheckpointError, files};

/// The file that the saving process locks. The lock ends with the process, however it ends.
const LOCK: &str = ".lock";
/// The suffix of directories that are incomplete or about to be deleted.
const PARTIAL: &str = ".partial";

/// A directory of checkpoints to which only this process saves.
#[derive(Debug)]
pub struct Store {
    writer: Writer,
    writing: Option<JoinHandle<Result<(), CheckpointError>>>,
    _lock: File,
}

impl Store {
    /// Opens a directory, creating it if missing. Keeps the newest `keep` checkpoints in it, and a [chosen one](Store::keep). Deletes partial
    /// checkpoints of killed processes.
    ///
    /// # Errors
    /// [`CheckpointError::Directory`] if it cannot be created or written to, or a file has the name of a checkpoint.
    /// [`CheckpointError::Busy`] if another process saves to it.
    ///
    /// # Panics
    /// If `keep` is 0.
    pub fn open(directory: &Path, keep: usize) -> Result<Self, CheckpointError> {
        assert!(keep > 0, "a store that keeps 0 checkpoints: expected at least 1");
        let unusable = CheckpointError::directory;
        let is_new = !directory.exists();
        fs::create_dir_all(directory).map_err(unusable(directory))?;
        // A later change of the working directory must not move the checkpoints.
        let directory = fs::canonicalize(directory).map_err(unusable(directory))?;
        let lock = lock(&directory)?;
        let mut writer = Writer { directory, keep, best: None, saved: BTreeSet::new() };
        writer.restore_replaced()?;
        writer.remove_partial()?;
        // The lock file may have existed already, so this checks that new files can be created.
        let trial = writer.partial(0);
        let tried = fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial));
        tried.map_err(unusable(&writer.directory))?;
        if let Some(parent) = writer.directory.parent().filter(|_| is_new) {
            sync_directory(parent).map_err(unusable(parent))?;
        }
        let saved = checkpoints(&writer.directory)?;
        if let Some((_, other)) = saved.iter().find(|(_, path)| !path.is_dir()) {
            let why = "it is not a directory: move or delete it";
            return Err(unusable(other)(io::Error::new(io::ErrorKind::NotADirectory, why)));
        }
        writer.saved = saved.into_iter().map(|(step, _)| step).collect();
        Ok(Self { writer, writing: None, _lock: lock })
    }

    /// Deletes all checkpoints in the directory, of any run.
    ///
    /// # Errors
    /// [`CheckpointError::Remove`] names the one that cannot be deleted.
    pub fn clear(&mut self) -> Result<(), CheckpointError> {
        self.writer.saved.clear();
        checkpoints(&self.writer.directory)?
            .into_iter()
            .try_for_each(|(step, path)| self.writer.remove(step, path))
    }

    /// Returns whether the step has, or had, a checkpoint.
    pub fn has(&self, step: u64) -> bool {
        self.writer.saved.contains(&step)
    }

    /// Forgets the checkpoints of later steps, which are damaged or belong to another run if a run resumes from this one.
    pub(crate) fn forget_after(&mut self, step: u64) {
        self.writer.saved.retain(|&saved| saved <= step);
    }

    /// Keeps the checkpoint of this step, however old, instead of the one kept so far.
    pub fn keep(&mut self, step: u64) {
        self.writer.best = Some(step);
    }

    /// Saves a checkpoint and returns its directory. It replaces one of the same step.
    ///
    /// Then deletes the oldest checkpoints beyond the number to keep, and warns of those that cannot be deleted. Checkpoints of later steps are kept. If
    /// a run resumes from an older checkpoint, they are damaged or belong to another run, and are not counted.
    ///
    /// # Errors
    /// [`CheckpointError`] of this checkpoint or of the one saved in the background. In the latter case this one is not saved. Older ones are
    /// untouched in both cases.
    ///
    /// # Panics
    /// If a tensor's values do not match its shape, or two tensors of a list have the same name.
    pub fn save<S>(&mut self, checkpoint: Checkpoint<S>) -> Result<PathBuf, CheckpointError>
    where
        S: Serialize + DeserializeOwned + Send + 'static,
    {
        let path = self.writer.directory.join(name(checkpoint.step));
        self.save_in_background(checkpoint)?;
        self.wait().map(|()| path)
    }

    /// Saves a checkpoint in the background. Waits for the previous one to be written, so that at most one is in memory.
    ///
    /// # Errors
    /// [`CheckpointError`] of the previous checkpoint; this one is then not saved. The next call, or
    /// [`Store::wait`], returns this one's error.
    ///
    /// # Panics
    /// As [`Store::save`].
    pub fn save_in_background<S>(&mut self, checkpoint: Checkpoint<S>) -> Result<(), CheckpointError>
    where
        S: Serialize + DeserializeOwned + Send + 'static,
    {
        checkpoint.check();
        self.wait()?;
        self.writer.saved.insert(checkpoint.step);
        let writer = self.writer.clone();
        let thread = thread::Builder::new().name("checkpoint".into());
        let spawned = thread.spawn(move || writer.save(&checkpoint));
        self.writing = Some(spawned.map_err(CheckpointError::write(&self.writer.directory))?);
        Ok(())
    }

    /// Checks whether the background save has already failed. Does not wait.
    ///
    /// # Errors
    /// [`CheckpointError`] of that checkpoint.
    pub fn check(&mut self) -> Result<(), CheckpointError> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) { self.wait() } else { Ok(()) }
    }

    /// Waits for the background save to complete.
    ///
    /// # Errors
    /// [`CheckpointError`] of that checkpoint.
    pub fn wait(&mut self) -> Result<(), CheckpointError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        match self.writing.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => tracing::error!("{error}"),
            Some(Err(_)) => tracing::error!("the thread that saved a checkpoint panicked"),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

fn lock(directory: &Path) -> Result<File, CheckpointError> {
    let path = directory.join(LOCK);
    let file = File::options().create(true).write(true).truncate(false).open(&path);
    let file = file.map_err(CheckpointError::directory(directory))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(CheckpointError::Busy { path: directory.into() }),
        // A network file system may have no locks, or no service that grants them.
        Err(TryLockError::Error(error))
            if error.kind() == io::ErrorKind::Unsupported
                || Errno::from_io_error(&error) == Some(Errno::NOLCK) =>
        {
            let path = path.display();
            tracing::warn!("`{path}` cannot be locked: make sure that no other run saves checkpoints there");
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(CheckpointError::Directory { path: directory.into(), error }),
    }
}

/// Writes checkpoints, on any thread.
#[derive(Debug, Clone)]
struct Writer {
    directory: PathBuf,
    keep: usize,
    /// The step of a checkpoint that is kept in addition to the newest.
    best: Option<u64>,
    /// The steps that have, or had, a checkpoint of this run.
    saved: BTreeSet<u64>,
}

impl Writer {
    fn save<S>(&self, checkpoint: &Checkpoint<S>) -> Result<(), CheckpointError>
    where
        S: Serialize + DeserializeOwned,
    {
        let partial = self.partial(checkpoint.step);
        let path = self.directory.join(name(checkpoint.step));
        let placed = write(&partial, checkpoint).and_then(|()| {
            self.place(&partial, checkpoint.step).map_err(CheckpointError::write(&path))?;
            sync_directory(&self.directory).map_err(CheckpointError::write(&self.directory))
        });
        if let Err(error) = placed {
            // Frees space for the next attempt. If this fails too, the first error is the one to report.
            let _ = fs::remove_dir_all(&partial);
            return Err(error);
        }
        // The checkpoint is in place, so nothing is lost if another one stays.
        warn(self.remove_partial());
        warn(self.remove_before(checkpoint.step));
        Ok(())
    }

    /// Deletes the checkpoints before those to keep, of which the newest is that of this step.
    fn remove_before(&self, step: u64) -> Result<(), CheckpointError> {
        let mut kept = 1;
        let older = checkpoints(&self.directory)?.into_iter().rev().filter(|(other, _)| *other < step);
        let surplus = older.skip_while(|(other, _)| {
            let is_kept = kept < self.keep;
            kept += usize::from(self.saved.contains(other));
            is_kept
        });
        let surplus = surplus.filter(|(other, _)| Some(*other) != self.best);
        surplus.for_each(|(other, path)| warn(self.remove(other, path)));
        Ok(())
    }

    /// Returns a name that is not a checkpoint's, so that its contents are never mistaken for one.
    fn partial(&self, step: u64) -> PathBuf {
        self.directory.join(format!(".{}-{}{PARTIAL}", name(step), std::process::id()))
    }

    /// Deletes a checkpoint. Renames it first, so that it is no longer valid from the first deleted file on.
    fn remove(&self, step: u64, path: PathBuf) -> Result<(), CheckpointError> {
        let partial = self.partial(step);
        let removed = match fs::rename(&path, &partial) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => delete_in_place(&path),
            renamed => renamed.and_then(|()| delete(&partial)),
        };
        removed.map_err(|error| CheckpointError::Remove { path, error })
    }

    /// Gives a complete checkpoint its name. If the name exists, exchanges the two directories.
    fn place(&self, partial: &Path, step: u64) -> io::Result<()> {
        let path = self.directory.join(name(step));
        if !path.exists() {
            return fs::rename(partial, path);
        }
        match renameat_with(CWD, partial, CWD, &path, RenameFlags::EXCHANGE) {
            // On a file system without exchange, the name is missing for a moment. If the process is killed then, the next one restores the replaced
            // checkpoint, from which this run may have resumed.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                let replaced = self.directory.join(replaced_name(step));
                fs::rename(&path, &replaced)?;
                fs::rename(partial, &path).inspect_err(|_| {
                    let _ = fs::rename(&replaced, &path);
                })
            }
            // A process that is killed now leaves no checkpoint of this step.
            Err(Errno::XDEV) => delete_in_place(&path).and_then(|()| fs::rename(partial, &path)),
            exchanged => Ok(exchanged?),
        }
    }

    /// Renames checkpoints back that a killed process was about to replace.
    fn restore_replaced(&self) -> Result<(), CheckpointError> {
        for (step, path) in checkpoints(&self.directory)? {
            let own = self.directory.join(name(step));
            if path != own {
                fs::rename(path, &own).map_err(CheckpointError::write(&own))?;
            }
        }
        Ok(())
    }

    /// Deletes partial, replaced and partly deleted checkpoints. The directory is locked, so none is in use.
    fn remove_partial(&self) -> Result<(), CheckpointError> {
        for entry in fs::read_dir(&self.directory).map_err(CheckpointError::read(&self.directory))? {
            let path = entry.map_err(CheckpointError::read(&self.directory))?.path();
            let file_name = path.file_name().unwrap_or_default().to_string_lossy();
            if file_name.starts_with(".step-")
                && [PARTIAL, REPLACED].iter().any(|end| file_name.ends_with(end))
            {
                warn(delete(&path).map_err(|error| CheckpointError::Remove { path, error }));
            }
        }
        Ok(())
    }
}

/// Writes all files of a checkpoint into a new directory, and syncs them to disk.
fn write<S>(directory: &Path, checkpoint: &Checkpoint<S>) -> Result<(), CheckpointError>
where
    S: Serialize + DeserializeOwned,
{
    let Checkpoint { step, ref state, ref parameters, ref optimizer } = *checkpoint;
    fs::create_dir(directory).map_err(CheckpointError::write(directory))?;
    let parameters = files::write_tensors(&directory.join(PARAMETERS), parameters, step)?;
    let optimizer = files::write_tensors(&directory.join(OPTIMIZER), optimizer, step)?;
    let content = Content { format: FORMAT, step, parameters, optimizer, state };
    let wrong = |error| CheckpointError::State { step, error };
    let content = serde_json::to_string_pretty(&content).map_err(wrong)?;
    if !files::fits(&content) {
        return Err(CheckpointError::StateTooLarge { step, bytes: content.len() });
    }
    // JSON has no NaN, so a state with one would not be read back.
    serde_json::from_str::<Content<S>>(&content).map_err(wrong)?;
    files::write_framed(&directory.join(STATE), &content)?;
    sync_directory(directory).map_err(CheckpointError::write(directory))
}

/// Deletes a directory that is no checkpoint any more.
fn delete(directory: &Path) -> io::Result<()> {
    use io::ErrorKind::{DirectoryNotEmpty, ResourceBusy};
    match fs::remove_dir_all(directory) {
        // NFS keeps a file under another name while a process of this machine has it open. A later save deletes it.
        Err(error) if matches!(error.kind(), DirectoryNotEmpty | ResourceBusy) => Ok(()),
        deleted => deleted,
    }
}

/// Deletes a checkpoint that cannot be renamed. Overlayfs renames no directory of a lower layer. The checkpoint is invalid from the first deleted file
/// on.
fn delete_in_place(directory: &Path) -> io::Result<()> {
    match fs::remove_file(directory.join(STATE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => delete(directory),
    }
}

/// Reports a failed deletion. The next save tries again.
fn warn(deleted: Result<(), CheckpointError>) {
    if let Err(error) = deleted {
        tracing::warn!("{error}");
    }
}
