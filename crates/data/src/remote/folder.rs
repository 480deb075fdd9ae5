//! The cache folder of one URL, into which one process at a time fetches.

use std::cell::Cell;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::cache::Cache;
use crate::once::Patience;

/// The maximum time without progress of the fetching process before others fail.
const STALLED: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The folder of a URL. No other process changes it while this value exists.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    /// The lock file, locked until it is closed. Its content is the progress of the process that holds the lock.
    lock: File,
    /// When this process last wrote its progress.
    written: Cell<Option<Instant>>,
}

impl Folder {
    /// Creates the folder of `url` if necessary, and waits until no other process fetches; the error describes the problem. The lock ends with its
    /// process, even if that is killed.
    ///
    /// Waits as long as the other process makes progress, and two minutes longer.
    pub(super) fn locked(url: &str, cache: &Cache) -> Result<Self, String> {
        let root = root(url, cache)?;
        let path = root.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = open.map_err(|error| cannot("open", &path, &error))?;
        let (mut patience, mut reported) = (Patience::new(STALLED), Instant::now());
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { root, lock, written: Cell::default() }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(cannot("lock", &path, &error)),
            }
            let progress = fs::read_to_string(&path).unwrap_or_default();
            if patience.has_ended(progress.clone()) {
                return Err(format!(
                    "is being fetched by another process, which has `{}` locked and has made no progress for {} s ({progress}): end it, \
                     or name another folder by --data-cache",
                    path.display(),
                    STALLED.as_secs(),
                ));
            }
            if reported.elapsed() > REPORT_INTERVAL {
                cache.report(&format!("{url}: waiting for another process to fetch it: {progress}"));
                reported = Instant::now();
            }
            thread::sleep(POLL);
        }
    }

    /// Reports the progress of this process to waiting processes.
    pub(super) fn write_progress(&self, progress: impl FnOnce() -> String) {
        const PAUSE: Duration = Duration::from_millis(200);
        if self.written.get().is_none_or(|written| written.elapsed() > PAUSE) {
            self.written.set(Some(Instant::now()));
            // On an error, a waiting process fails too early, at worst.
            let _ = self.lock.set_len(0).and_then(|()| self.lock.write_all_at(progress().as_bytes(), 0));
        }
    }

    /// Returns the folder of complete files.
    pub(super) fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    /// Returns the folder of incomplete files.
    pub(super) fn parts(&self) -> PathBuf {
        self.root.join("parts")
    }

    pub(super) fn manifest(&self) -> PathBuf {
        self.root.join("manifest.jsonl")
    }
}

/// Creates the folder of `url` if necessary, and returns its path; the error describes the problem.
fn root(url: &str, cache: &Cache) -> Result<PathBuf, String> {
    let above = match &cache.folder {
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| cannot("make", folder, &error))?;
            folder.clone()
        }
        None => own_temporary()?,
    };
    // A readable part of the URL, and a hash that distinguishes URLs.
    let last = url.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let readable: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || ".-_".contains(*c)).take(40).collect();
    let root = above.join(format!("{readable}-{:016x}", xxh3_64(url.as_bytes())));
    for path in [root.join("files"), root.join("parts")] {
        fs::create_dir_all(&path).map_err(|error| cannot("make", &path, &error))?;
    }
    // For people who inspect the cache.
    let note = root.join("url");
    fs::write(&note, format!("{url}\n")).map_err(|error| cannot("write", &note, &error))?;
    Ok(root)
}

/// Returns the default folder, which belongs to this user: other users may create files in the system's temporary directory.
fn own_temporary() -> Result<PathBuf, String> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("unisono-data-cache-{user}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(cannot("make", &folder, &error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| cannot("read", &folder, &error))?;
    if !found.is_dir() || found.uid() != user {
        return Err(format!(
            "cannot be kept in `{}`, which is no folder of this user's: name another by --data-cache",
            folder.display()
        ));
    }
    Ok(folder)
}

/// Returns the message for a failed operation on a path of the cache.
pub(super) fn cannot(verb: &str, path: &Path, error: &io::Error) -> String {
    format!(
        "cannot be kept: cannot {verb} `{}`: {error}; name another folder by --data-cache",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::testing::TestDirectory;

    fn cache(above: &TestDirectory) -> Cache {
        Cache { folder: Some(above.path().into()), report: None }
    }

    #[test]
    fn each_url_has_its_own_folder() {
        let above = TestDirectory::new();
        let root = |url| root(url, &cache(&above)).unwrap();
        let one = root("s3://bucket/train/");
        let name = one.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("train-") && name.len() == 22, "{name}");
        assert_ne!(one, root("s3://other/train/"));
        assert_eq!(one, root("s3://bucket/train/"));
    }

    #[test]
    fn one_process_at_a_time_holds_the_lock() {
        let above = TestDirectory::new();
        let folder = Folder::locked("s3://b/a", &cache(&above)).unwrap();
        folder.write_progress(|| "half of it".into());
        assert_eq!(fs::read_to_string(folder.root.join("lock")).unwrap(), "half of it");
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            scope.spawn(move || send.send(Folder::locked("s3://b/a", &cache(&above)).is_ok()));
            receive.recv_timeout(Duration::from_millis(200)).unwrap_err();
            drop(folder);
            assert!(receive.recv_timeout(Duration::from_secs(10)).unwrap());
        });
    }

    #[test]
    fn only_this_user_can_change_the_default_folder() {
        let folder = own_temporary().unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o077, 0);
    }
}
