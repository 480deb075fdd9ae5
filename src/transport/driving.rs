//! A function that a thread calls while it waits for another rank, such as MPI's progress. Waits themselves do not depend on MPI.

use std::cell::Cell;

thread_local! {
    static DRIVEN: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Makes waits on this thread call a function, until it is dropped.
#[cfg(feature = "mpi")]
#[derive(Debug)]
pub(super) struct Driving {
    before: Option<fn()>,
}

#[cfg(feature = "mpi")]
impl Driving {
    pub(super) fn new(drive: fn()) -> Self {
        Self { before: DRIVEN.replace(Some(drive)) }
    }
}

#[cfg(feature = "mpi")]
impl Drop for Driving {
    fn drop(&mut self) {
        DRIVEN.set(self.before);
    }
}

/// Calls the function of this thread, if it has one.
pub(super) fn drive() {
    if let Some(drive) = DRIVEN.get() {
        drive();
    }
}
