//! The cache folder of one URL, into which one process at a time fetches, and the manifest of its content.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::once::Patience;
use crate::source::Cache;

/// The maximum time without progress of the fetching process before others fail.
const STALLED: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The folder of a URL. No other process changes it while this value exists.
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
    /// Waits as long as the other process makes progress, and two minutes longer.
    pub(super) fn locked(url: &str, cache: &Cache) -> Result<Self, String> {
        let root = root(url, cache)?;
        let path = root.join("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let lock = open.map_err(|error| cannot("open", &path, &error))?;
        let (mut patience, mut reported) = (Patience::new(STALLED), Instant::now());
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    // The text is the progress of an earlier process.
                    lock.set_len(0).map_err(|error| cannot("write", &path, &error))?;
                    return Ok(Self { root, lock, written: Cell::default() });
                }
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
    if let Err(error) = DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(cannot("make", &folder, &error));
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    /// The path below the mirrored folder, with `/` between the parts.
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
    /// The modification time in seconds since 1970, as reported by the server.
    pub(super) modified: i64,
}

impl Version {
    /// Returns whether the server sent neither an ETag nor a time. Objects of the same size are then not distinguished.
    pub(super) fn is_unknown(&self) -> bool {
        self.etag.is_none() && self.modified == 0
    }
}

/// The versions in a mirror, one JSON object per line. Of several lines with the same path, the last is valid. Objects that were fetched before a
/// process was killed need not be fetched again.
pub(super) struct Manifest {
    path: PathBuf,
    versions: HashMap<String, Version>,
}

impl Manifest {
    /// Reads the file if it exists. A damaged line, such as a partly written last one, means that its object is fetched again.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let lines = text.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        let versions = lines.map(|version: Version| (version.path.clone(), version)).collect();
        Ok(Self { path, versions })
    }

    /// Returns whether the file of a mirror has this version.
    pub(super) fn has(&self, version: &Version, file: &Path) -> bool {
        let has_size = || file.metadata().is_ok_and(|found| found.is_file() && found.len() == version.size);
        self.versions.get(&version.path) == Some(version) && has_size()
    }

    /// Adds versions whose files exist, and survive a loss of power.
    pub(super) fn add(&mut self, versions: &[Version]) -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        // Starts a new line, even after a partly written one.
        file.write_all(format!("\n{}", lines(versions)).as_bytes())?;
        self.versions.extend(versions.iter().map(|version| (version.path.clone(), version.clone())));
        Ok(())
    }

    /// Records that these versions exist, and no others.
    pub(super) fn close(self, versions: &[Version]) -> io::Result<()> {
        let part = self.path.with_extension("part");
        let mut file = File::create(&part)?;
        file.write_all(lines(versions).as_bytes())?;
        file.sync_all()?;
        fs::rename(part, &self.path)
    }
}

fn lines(versions: &[Version]) -> String {
    let line = |version| serde_json::to_string(version).expect("a version is plain") + "\n";
    versions.iter().map(line).collect()
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
        let progress = |folder: &Folder| fs::read_to_string(folder.root.join("lock")).unwrap();
        assert_eq!(progress(&folder), "half of it");
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            scope.spawn(move || {
                let locked = Folder::locked("s3://b/a", &cache(&above));
                send.send(locked.map(|folder| progress(&folder)))
            });
            receive.recv_timeout(Duration::from_millis(200)).unwrap_err();
            drop(folder);
            let cleared = receive.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(cleared.as_deref(), Ok(""), "the progress of the first process is cleared");
        });
    }

    #[test]
    fn only_this_user_can_change_the_default_folder() {
        let folder = own_temporary().unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o077, 0);
    }

    fn version(path: &str, etag: &str) -> Version {
        Version { path: path.into(), size: 3, etag: Some(etag.into()), modified: 7 }
    }

    #[test]
    fn versions_are_read_after_a_truncated_line() {
        let folder = TestDirectory::new();
        let (file, path) = (folder.file("a", "abc"), folder.path().join("manifest"));
        let mut manifest = Manifest::open(path.clone()).unwrap();
        assert!(!manifest.has(&version("a", "1"), &file));
        manifest.add(&[version("a", "1"), version("b", "1")]).unwrap();
        fs::write(&path, [&fs::read(&path).unwrap(), &b"{\"path\":\"c\","[..]].concat()).unwrap();
        manifest = Manifest::open(path.clone()).unwrap();
        manifest.add(&[version("d", "1")]).unwrap();
        let manifest = Manifest::open(path.clone()).unwrap();
        assert!(manifest.has(&version("a", "1"), &file) && manifest.has(&version("d", "1"), &file));
        assert!(!manifest.has(&version("a", "2"), &file) && !manifest.has(&version("c", "1"), &file));
        manifest.close(&[version("a", "1")]).unwrap();
        let manifest = Manifest::open(path).unwrap();
        assert!(manifest.has(&version("a", "1"), &file) && !manifest.has(&version("d", "1"), &file));
        fs::write(&file, "ab").unwrap();
        assert!(!manifest.has(&version("a", "1"), &file), "a file of another size is another version");
    }
}
