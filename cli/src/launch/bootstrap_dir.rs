//! The directory in which ranks find each other.

use std::env::temp_dir;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A private directory of this user. Dropping it deletes the directory and its contents.
#[derive(Debug)]
pub(super) struct BootstrapDir(PathBuf);

impl BootstrapDir {
    /// Creates a directory with an unpredictable name in the system's temporary directory.
    pub(super) fn new() -> io::Result<Self> {
        loop {
            let path = temp_dir().join(format!("unisono-launch-{:016x}", RandomState::new().hash_one(())));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!("cannot create the bootstrap directory {}: {error}", path.display());
                    return Err(io::Error::new(error.kind(), what));
                }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BootstrapDir {
    fn drop(&mut self) {
        // The system's clean-up of temporary files removes what remains after an error.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn it_is_private_and_goes_away() {
        let (one, other) = (BootstrapDir::new().unwrap(), BootstrapDir::new().unwrap());
        assert_ne!(one.path(), other.path());
        assert_eq!(fs::metadata(one.path()).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists());
    }
}
