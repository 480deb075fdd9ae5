//! Temporary files for tests, deleted at the end of the test.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A temporary directory for one test.
pub(super) struct TestDirectory(TempDir);

impl TestDirectory {
    pub(super) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// Returns the directory itself.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and returns its path.
    pub(super) fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    }
}
