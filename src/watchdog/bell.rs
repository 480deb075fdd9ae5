//! The event that wakes a watchdog.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a watchdog, and tells it to end.
#[derive(Debug)]
pub(super) struct Bell {
    event: OwnedFd,
    ends: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { event, ends: AtomicBool::new(false) })
    }

    pub(super) fn ring(&self) {
        // It fails only if its counter overflows.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn ring_to_end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    /// Resets the event.
    pub(super) fn still(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
