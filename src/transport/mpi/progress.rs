//! MPI's progress: its pending messages move only while a process calls it.
//!
//! A rank that waits outside of MPI may owe others something that MPI has kept: a call of MPI may return before its last message has left.

use std::cell::Cell;

use super::World;
use super::sys::{Comm, may_call};
use crate::transport::driving::Driving;

thread_local! {
    static COMM: Cell<Option<Comm>> = const { Cell::new(None) };
}

/// Until it is dropped, waits on this thread let MPI make progress.
#[derive(Debug)]
pub(crate) struct Driven {
    before: Option<Comm>,
    _driving: Driving,
}

impl World {
    /// Makes waits on this thread let MPI make progress, if the thread may call it.
    #[inline]
    pub(in crate::transport) fn driven(&self) -> Option<Driven> {
        may_call(self.only_thread)
            .then(|| Driven { before: COMM.replace(Some(self.comm)), _driving: Driving::new(drive) })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        COMM.set(self.before);
    }
}

fn drive() {
    if let Some(comm) = COMM.get() {
        comm.progress();
    }
}
