//! The room on a file system, and amounts of bytes as people read them.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstatvfs;

/// Returns the bytes of the file system of an open file or directory: those that this user may still fill,
/// and all.
pub(crate) fn room(file: impl AsFd) -> io::Result<[u64; 2]> {
    let found = fstatvfs(file)?;
    Ok([found.f_bavail, found.f_blocks].map(|blocks| blocks.saturating_mul(found.f_frsize)))
}

/// So many bytes, to be read.
pub(crate) fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
