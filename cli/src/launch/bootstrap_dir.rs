//! Where ranks find each other.

use std::env::temp_dir;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A directory that is this user's alone, and is gone when it is dropped, with all that is in it.
#[derive(Debug)]
pub(super) struct BootstrapDir(PathBuf);

impl BootstrapDir {
    /// A new one, with a name that nobody can foresee, among the system's temporary files.
    pub(super) fn new() -> io::Result<Self> {
        loop {
            let path = temp_dir().join(format!("unisono-launch-{:016x}", RandomState::new().hash_one(())));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!(
                        "cannot make the folder {} for ranks to find each other: {error}",
                        path.display()
                    );
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
        // It is among temporary files: whoever cleans up there will find what could not be removed.
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
