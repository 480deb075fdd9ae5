//! MPI's progress, which MPI makes on pending messages only while a process calls it.
//!
//! A rank that waits outside of MPI must drive it, since a call of MPI may return before its last message is sent.

use std::cell::Cell;

use super::World;
use super::sys::{Comm, may_call};
use crate::transport::waiting::DRIVE;

thread_local! {
    static COMM: Cell<Option<Comm>> = const { Cell::new(None) };
}

/// Makes waits on this thread drive MPI's progress until it is dropped.
#[derive(Debug)]
pub(crate) struct Driven {
    before: Option<Comm>,
}

impl World {
    /// Makes waits on this thread drive MPI's progress, if the thread may call it.
    #[inline]
    pub(in crate::transport) fn driven(&self) -> Option<Driven> {
        DRIVE.get_or_init(|| drive);
        may_call(self.only_thread).then(|| Driven { before: COMM.replace(Some(self.comm)) })
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
