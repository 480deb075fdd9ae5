//! The content of a mirror: the version of each object in it.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    /// The path below the mirrored folder, with `/` between the parts.
    pub(super) path: String,
    pub(super) size: u64,
    pub(super) etag: Option<String>,
    /// The modification time in seconds since 1970, as reported by the server.
    pub(super) modified: i64,
}

/// The versions in a mirror, one JSON object per line. Of several lines with the same path, the last is valid. Objects that were fetched before a
/// process was killed need not be fetched again.
#[derive(Debug)]
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
    use super::*;
    use crate::testing::TestDirectory;

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
