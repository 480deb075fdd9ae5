//! A lock around MPI calls: `MPI_THREAD_SERIALIZED` allows one at a time, and groups may be used on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

/// The number of users of MPI: communicators, and the links of their messages. A second one is created on the thread that has the first.
static USERS: AtomicUsize = AtomicUsize::new(0);
static LOCK: Mutex<()> = Mutex::new(());

pub(in super::super) fn may_call(only: Option<ThreadId>) -> bool {
    only.is_none_or(|only| only == std::thread::current().id())
}

/// # Panics
/// If MPI allows calls from another thread only.
pub(in super::super) fn check_thread(only: Option<ThreadId>) {
    assert!(
        may_call(only),
        "this MPI allows calls from one thread only: use the communicator on the thread that made it, or initialise MPI \
         with MPI_THREAD_SERIALIZED"
    );
}

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

/// Locks MPI for a call. There is no lock while there is only one user.
#[inline]
pub(super) fn lock() -> Option<MutexGuard<'static, ()>> {
    is_shared().then(|| LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Makes an MPI call, unless another thread is in one.
pub(super) fn unless_locked(call: impl FnOnce()) {
    let lock = is_shared().then(|| LOCK.try_lock());
    if !matches!(lock, Some(Err(TryLockError::WouldBlock))) {
        call();
    }
}

/// Returns whether several threads may call MPI.
fn is_shared() -> bool {
    USERS.load(Ordering::Acquire) > 1
}
