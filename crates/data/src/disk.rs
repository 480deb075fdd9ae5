//! Free space on a file system, and sizes as text.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::fstatvfs;

/// Returns the bytes of the file system of an open file or directory: those available to this user, and the total.
pub(crate) fn room(file: impl AsFd) -> io::Result<[u64; 2]> {
    let found = fstatvfs(file)?;
    Ok([found.f_bavail, found.f_blocks].map(|blocks| blocks.saturating_mul(found.f_frsize)))
}

pub(crate) fn amount(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
