//! A lock around MPI calls: `MPI_THREAD_SERIALIZED` allows one at a time, and groups may be used on several threads.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;

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

/// Locks MPI for a call. A function that holds the lock calls none that takes it.
#[inline]
pub(super) fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an MPI call, unless another thread is in one.
pub(super) fn unless_locked(call: impl FnOnce()) {
    let lock = LOCK.try_lock();
    if !matches!(lock, Err(TryLockError::WouldBlock)) {
        call();
    }
}
