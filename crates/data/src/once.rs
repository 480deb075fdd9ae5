//! Files that one of several processes makes, and all of them read.
//!
//! A process holds the lock of a temporary file, writes it, and renames it when its content is on disk, so no process reads a partial file. The
//! kernel releases the lock when the process ends for any reason, and another process then makes the file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::DataError;

/// The time that a process waits for others without progress.
const STALLED: Duration = Duration::from_secs(600);
const NAP: Duration = Duration::from_millis(10);

/// A timeout that restarts with every progress.
pub(crate) struct Patience<P> {
    limit: Duration,
    /// The last progress of the other process.
    seen: Option<P>,
    since: Instant,
}

impl<P: PartialEq> Patience<P> {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, seen: None, since: Instant::now() }
    }

    /// Returns whether there was no progress for too long. `progress` is the current state of the other process.
    pub(crate) fn has_ended(&mut self, progress: P) -> bool {
        if self.seen.as_ref() != Some(&progress) {
            (self.seen, self.since) = (Some(progress), Instant::now());
        }
        self.since.elapsed() > self.limit
    }
}

/// Makes the files that `open` finds missing or invalid, and opens all. Several processes that call it with the same files share the work, a file at
/// a time.
pub(crate) fn make_all<S>(
    paths: &[PathBuf],
    open: impl Fn(usize, &Path) -> Option<S>,
    make: impl Fn(usize, &mut File) -> Result<(), DataError>,
) -> Result<Vec<S>, DataError> {
    let mut found: Vec<_> = paths.iter().enumerate().map(|(index, path)| open(index, path)).collect();
    let mut patience = Patience::new(STALLED);
    while let Some(missing) = found.iter().position(Option::is_none) {
        let mut has_new = false;
        for (index, path) in paths.iter().enumerate().filter(|(index, _)| *index >= missing) {
            if found[index].is_none() {
                let open = |path: &Path| open(index, path);
                found[index] = attempt(path, open, |file| make(index, file))?;
                has_new |= found[index].is_some();
            }
        }
        // Another process is writing the first missing file.
        let written = fs::metadata(paths[missing].with_added_extension("part")).map_or(0, |part| part.len());
        let there = found.iter().flatten().count();
        if patience.has_ended((there, written)) {
            let problem = format!(
                "another process has written nothing more of it for {} s: end that one, or use another directory",
                STALLED.as_secs()
            );
            return Err(DataError::file(paths[missing].clone(), problem));
        }
        if !has_new {
            thread::sleep(NAP);
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// Makes the file unless it exists. Returns `None` if another process is making it.
fn attempt<S>(
    path: &Path,
    open: impl Fn(&Path) -> Option<S>,
    make: impl FnOnce(&mut File) -> Result<(), DataError>,
) -> Result<Option<S>, DataError> {
    if let Some(there) = open(path) {
        return Ok(Some(there));
    }
    let part = path.with_added_extension("part");
    let unwritten = DataError::write(&part);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).open(&part).map_err(unwritten)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(unwritten(error)),
    }
    if !is_at(&file, &part).map_err(unwritten)? {
        // Another process has finished or failed with the file since it was opened.
        return Ok(None);
    }
    let there = match open(path) {
        Some(there) => Ok(Some(there)),
        None => write(&mut file, &part, path, make).map(|()| None),
    };
    if !matches!(there, Ok(None)) {
        // A process that waits for this lock notices that the name is gone.
        let removed = fs::remove_file(&part).map_err(unwritten);
        return there.and_then(|there| removed.map(|()| there));
    }
    let problem = "was written, and is not as it was written: check the disk";
    open(path).map(Some).ok_or_else(|| DataError::file(path, problem))
}

fn write(
    file: &mut File,
    part: &Path,
    path: &Path,
    make: impl FnOnce(&mut File) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let unwritten = DataError::write(part);
    // A killed process may have left content.
    file.set_len(0).map_err(unwritten)?;
    make(file)?;
    file.sync_all().map_err(unwritten)?;
    fs::rename(part, path).map_err(unwritten)?;
    let directory = path.parent().expect("a file is in a directory");
    sync_directory(directory).map_err(unwritten)
}

/// Flushes the names in a directory to the disk. Some network file systems, and shared folders of virtual machines, have no such operation for
/// directories, and return `EINVAL`.
#[doc(hidden)]
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((own.dev(), own.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn content(_: usize, path: &Path) -> Option<String> {
        fs::read_to_string(path).ok().filter(|text| text.starts_with("good"))
    }

    #[test]
    fn each_file_is_made_once_by_concurrent_callers() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..12).map(|index| folder.path().join(format!("{index}"))).collect();
        fs::write(&paths[3], "damaged").unwrap();
        fs::write(paths[4].with_added_extension("part"), "left by a process that was killed, and longer")
            .unwrap();
        let made = AtomicUsize::new(0);
        let make = |index: usize, file: &mut File| {
            made.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(2));
            write!(file, "good {index}").map_err(DataError::other)
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let all = make_all(&paths, content, make).unwrap();
                    assert!(all.into_iter().eq((0..12).map(|index| format!("good {index}"))));
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 12);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 12, "nothing else is left");
    }

    #[test]
    fn a_file_that_cannot_be_made_leaves_no_remains() {
        let folder = tempfile::tempdir().unwrap();
        let path = [folder.path().join("one")];
        let fail = |_, file: &mut File| {
            file.write_all(b"good, but").unwrap();
            Err(DataError::other("no more"))
        };
        let error = make_all(&path, content, fail).unwrap_err();
        assert_eq!(error.to_string(), "no more");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn directory_of_a_file_system_that_cannot_flush_it_is_no_error() {
        let refused = File::open("/proc").unwrap().sync_all().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        sync_directory(Path::new("/proc")).unwrap();
        assert_eq!(sync_directory(Path::new("/missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn patience_ends_without_progress() {
        let mut patience = Patience::new(Duration::from_millis(40));
        for progress in 0..5 {
            assert!(!patience.has_ended(progress));
            thread::sleep(Duration::from_millis(50));
        }
        assert!(patience.has_ended(4));
        assert!(!patience.has_ended(5));
    }
}
