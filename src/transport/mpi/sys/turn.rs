//! Threads take turns in MPI, which allows one at a time: groups may be used on several.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many communicators of ours there are. A second one is made on the thread that has the first.
static USERS: AtomicUsize = AtomicUsize::new(0);
static TURN: Mutex<()> = Mutex::new(());

/// A communicator that calls MPI, for as long as this lives.
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

/// To be kept during a call of MPI's. Nobody waits as long as there is one communicator.
#[inline]
pub(super) fn turn() -> Option<MutexGuard<'static, ()>> {
    (USERS.load(Ordering::Acquire) > 1).then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
