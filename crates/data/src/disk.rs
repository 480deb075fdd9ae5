//! The room on a file system, and amounts of bytes as people read them.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{StatVfs, fstatvfs, statvfs};

/// The bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Those that this user may still fill.
    pub(crate) free: u64,
    pub(crate) size: u64,
}

impl Disk {
    /// The file system of a path.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(statvfs(path)?.into())
    }

    /// The file system of an open file, which may have no path.
    pub(crate) fn of_file(file: impl AsFd) -> io::Result<Self> {
        Ok(fstatvfs(file)?.into())
    }
}

impl From<StatVfs> for Disk {
    fn from(found: StatVfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Self { free: bytes(found.f_bavail), size: bytes(found.f_blocks) }
    }
}

/// So many bytes, to be read.
pub(crate) fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
