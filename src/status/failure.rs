//! How a rank that fails is heard: what its thread's panic said, who speaks for it, and who watches.

use std::cell::RefCell;
use std::fmt::Debug;

/// Speaks for a rank that cannot go on, before the other ranks are told. A floor above this one may give a rank such a report.
pub(crate) trait FailureReport: Debug + Send + Sync {
    /// Says why this rank fails, and writes it on the status board.
    fn fail(&self, cause: &str);

    /// Lets the other nodes know at once what is on the status board.
    #[cfg(feature = "mpi")]
    fn hurry(&self);
}

/// Watches over the ranks of this process for as long as it is held.
pub(crate) trait Guard: Debug + Send + Sync {
    /// From now on, these ranks are all that the program does: it ends when one of them fails.
    fn end_program_on_failure(&self);
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps what a panic of this thread said.
pub(crate) fn keep_panic(said: String) {
    PANIC.with(|last| last.replace(Some(said)));
}

/// Why a rank fails whose thread panics.
pub(crate) fn panicked() -> String {
    let said = PANIC.try_with(|last| last.borrow().clone()).ok().flatten();
    said.unwrap_or_else(|| "it panicked".to_owned())
}
