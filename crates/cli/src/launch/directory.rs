//! The directory through which the ranks of a job connect.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use tempfile::TempDir;

const PREFIX: &str = "unisono-ranks-";

/// A private directory of this user. Dropping it deletes the directory and its contents.
#[derive(Debug)]
pub(super) struct Directory {
    directory: TempDir,
    /// A lock that the ranks inherit. The directory is in use while any rank or this process is alive.
    _lock: OwnedFd,
}

impl Directory {
    /// Creates a directory, and removes the directories of jobs that were killed.
    pub(super) fn new() -> io::Result<Self> {
        Self::inside(&std::env::temp_dir()).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot create the bootstrap directory: {error}"))
        })
    }

    fn inside(temporary: &Path) -> io::Result<Self> {
        remove_left(temporary);
        loop {
            let private = Permissions::from_mode(0o700);
            let directory =
                tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(temporary)?;
            // Another job may have removed the directory before it was locked.
            match lock(directory.path()) {
                Ok(lock) if directory.path().exists() => return Ok(Self { directory, _lock: lock }),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Locks a directory. Fails if a process has already locked it.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    // The lock is not closed on exec, so ranks inherit it.
    let lock = open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Removes the directories of this user's killed jobs.
fn remove_left(temporary: &Path) {
    let user = rustix::process::getuid().as_raw();
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let is_own = || entry.metadata().is_ok_and(|found| found.uid() == user);
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && is_own()
            && let Ok(_lock) = lock(&entry.path())
        {
            // On failure, the next job tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_private_and_removed_on_drop() {
        let temporary = tempfile::tempdir().unwrap();
        let new = || Directory::inside(temporary.path()).unwrap();
        let (one, other) = (new(), new());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn directories_of_killed_jobs_are_removed_and_directories_in_use_are_kept() {
        let temporary = tempfile::tempdir().unwrap();
        let inside = |name: &str| temporary.path().join(name);
        let (killed, unrelated) = (inside("unisono-ranks-killed"), inside("unrelated"));
        for folder in [&killed, &unrelated] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("file"), "").unwrap();
        }
        let used = Directory::inside(temporary.path()).unwrap();
        let next = Directory::inside(temporary.path()).unwrap();
        assert!(!killed.exists());
        assert!(unrelated.exists() && used.path().exists() && next.path().exists());
    }

    #[test]
    fn rank_that_outlives_the_launcher_keeps_the_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let Directory { directory, _lock: lock } = Directory::inside(temporary.path()).unwrap();
        let mut rank = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let path = directory.keep();
        drop(lock);
        remove_left(temporary.path());
        assert!(path.exists());
        rank.kill().and_then(|()| rank.wait()).unwrap();
        remove_left(temporary.path());
        assert!(!path.exists());
    }
}
