//! A lock around MPI calls: `MPI_THREAD_SERIALIZED` allows one at a time, and groups may be used on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of our communicators. A second one is created on the thread that has the first.
static USERS: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

/// Counts a communicator that calls MPI while it lives.
#[derive(Debug)]
pub(in super::super) struct User(());

impl User {
    pub(in super::super) fn new() -> Self {
        USERS.fetch_add(1, Ordering::AcqRel);
        Self(())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        USERS.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The lock to hold during an MPI call; not taken while there is only one communicator.
#[inline]
pub(super) fn turn() -> Option<MutexGuard<'static, ()>> {
    (USERS.load(Ordering::Acquire) > 1).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
