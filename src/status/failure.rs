//! Hooks for failures: the text of a panic, the failure report of a rank, and who watches over it.

use std::cell::RefCell;
use std::fmt::Debug;

/// Reports that a rank cannot continue, before the other ranks are informed. A higher layer implements it.
pub(crate) trait FailureReport: Debug + Send + Sync {
    /// Reports why this rank fails, and records it on the status board.
    fn fail(&self, cause: &str);

    /// Sends the state of the status board to the other nodes immediately.
    #[cfg(feature = "mpi")]
    fn hurry(&self);
}

/// Watches over the ranks of this process while it is held.
pub(crate) trait Guard: Debug + Send + Sync {
    /// Looks for what these ranks cannot see of the others by messages, unless a thread does. Ranks call it while they wait.
    fn look(&self);
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the text of a panic of this thread.
pub(crate) fn keep_panic(said: String) {
    PANIC.with(|last| last.replace(Some(said)));
}

/// The cause of failure of a rank whose thread panics.
pub(crate) fn panicked() -> String {
    let said = PANIC.try_with(|last| last.borrow().clone()).ok().flatten();
    said.unwrap_or_else(|| "it panicked".to_owned())
}
