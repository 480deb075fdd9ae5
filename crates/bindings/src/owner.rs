//! The process that owns a handle.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

/// The process that created a handle. A forked child must not use its copy of the handle, which is the parent's rank.
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

    /// Drops a handle, except in a forked child, where the drop would make the parent's rank leave. A panic is caught.
    pub fn free<T>(self, handle: T) {
        if self == Self::this_process() {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
        } else {
            std::mem::forget(handle);
        }
    }
}
