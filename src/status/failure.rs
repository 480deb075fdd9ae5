//! Hooks for failures: the text of a panic, and the failure report of a rank.

use std::cell::RefCell;
use std::fmt::Debug;

use unisono_collectives::Rank;

/// Reports that a rank cannot continue, before the other ranks are informed. A higher layer implements it.
pub(crate) trait FailureReport: Debug + Send + Sync {
    /// Reports why this rank fails, because of rank `first`, which may be itself, and records it on the status board.
    fn fail(&self, first: Rank, cause: &str);

    /// Sends the state of the status board to the other nodes immediately.
    fn hurry(&self);
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the text of a panic of this thread.
pub(crate) fn keep_panic(said: String) {
    PANIC.with(|last| last.replace(Some(said)));
}

/// Returns the cause of failure of a rank whose thread panics.
pub(crate) fn panicked() -> String {
    let said = PANIC.try_with(|last| last.borrow().clone()).ok().flatten();
    said.unwrap_or_else(|| "it panicked".to_owned())
}
