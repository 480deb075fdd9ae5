//! File descriptors that the program may close: daemons, and children before `exec`, close all descriptors from 3 up.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// A file that this process has opened for itself.
#[derive(Debug)]
pub(super) struct OwnFile {
    file: Option<OwnedFd>,
    identity: Option<(u64, u64)>,
}

impl OwnFile {
    pub(super) fn of(file: Option<OwnedFd>) -> Self {
        let identity = file.as_ref().and_then(|file| identity(file.as_fd()));
        Self { file, identity }
    }

    /// Returns the file, unless the program has closed it. Another file may then have its descriptor.
    pub(super) fn get(&self) -> Option<BorrowedFd<'_>> {
        let file = self.file.as_ref()?.as_fd();
        (self.identity.is_some() && identity(file) == self.identity).then_some(file)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.get().is_none() {
            // Without a file, the descriptor is closed or belongs to the program.
            self.file.take().into_iter().for_each(std::mem::forget);
        }
    }
}

/// Returns numbers that distinguish an open file from most others. On kernels before 6.9 they do not distinguish pidfds.
fn identity(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let status = rustix::fs::fstat(file).ok()?;
    Some((status.st_dev, status.st_ino))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    impl OwnFile {
        /// Returns a file whose descriptor the program has closed and reused.
        pub(in super::super) fn replaced(file: OwnedFd) -> Self {
            Self { file: Some(file), identity: Some((0, 0)) }
        }
    }

    #[test]
    fn descriptor_reused_by_the_program_is_neither_used_nor_closed() {
        let event = || eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(OwnFile::of(Some(event())).get().is_some());
        let event = event();
        let link = format!("/proc/self/fd/{}", event.as_raw_fd());
        let replaced = OwnFile::replaced(event);
        assert!(replaced.get().is_none());
        drop(replaced);
        assert!(std::fs::symlink_metadata(link).is_ok(), "it is still open");
    }
}
