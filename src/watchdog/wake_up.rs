//! The event that wakes a watchdog.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::file::OwnFile;

/// Wakes a watchdog, and signals it to end.
#[derive(Debug)]
pub(super) struct WakeUp {
    /// If the program has closed it, the watchdog wakes up at its next tick.
    pub(super) event: OwnFile,
    ends: AtomicBool,
}

impl WakeUp {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { event: OwnFile::of(Some(event)), ends: AtomicBool::new(false) })
    }

    pub(super) fn wake(&self) {
        if let Some(event) = self.event.get() {
            // It fails only if its counter overflows.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn ends(&self) -> bool {
        self.ends.load(Ordering::Acquire)
    }

    pub(super) fn reset(&self) {
        if let Some(event) = self.event.get() {
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }
}
