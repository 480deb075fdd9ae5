//! The process that owns a handle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

/// The process that created a handle. In a child that `fork` made, a copy of the handle must not be used: it is the parent's rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// Returns this process.
    pub fn this_process() -> Self {
        Self(process::id())
    }

    /// # Errors
    /// If this is a forked child of the owner, with the text of the error.
    pub fn check(self) -> Result<(), String> {
        if self == Self::this_process() {
            return Ok(());
        }
        Err(format!("the handle belongs to process {}: a forked child cannot use it", self.0))
    }

    /// Drops a handle, but not in a forked child, where that would tell other ranks that the parent has left. A panic stays inside.
    pub fn free<T>(self, handle: T) {
        if self == Self::this_process() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
        } else {
            std::mem::forget(handle);
        }
    }
}
