//! A callback of the program that runs while a thread waits for other ranks.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

/// A callback that runs during waits. It returns NULL to continue the wait, or the cause for which the wait ends.
pub type Look = Option<unsafe extern "C" fn() -> *const c_char>;

thread_local! {
    static CALLBACK: Cell<Look> = const { Cell::new(None) };
}

/// Makes blocking calls and waits for requests on this thread run a function about every 100 µs while they wait for other ranks: to
/// make progress on other work, or to check for an interrupt. NULL removes the function. The function must not use a communicator of
/// this library. If it returns a text, the call fails with this cause on this rank, and with UNISONO_ERROR_ABORTED and the cause on
/// the others.
///
/// # Safety
/// The function must be callable until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_while_waiting(look: Look) {
    CALLBACK.set(look);
}

/// Makes a call that runs the callback of this thread, if there is one, while it waits.
#[inline]
pub(crate) fn with_callback<R>(call: impl FnOnce() -> R) -> R {
    if CALLBACK.get().is_none() { call() } else { unisono::while_waiting(run, call) }
}

fn run() -> Result<(), String> {
    let Some(callback) = CALLBACK.get() else { return Ok(()) };
    // SAFETY: as the caller of `unisono_while_waiting` promises.
    let cause = unsafe { callback() };
    if cause.is_null() {
        return Ok(());
    }
    // SAFETY: it is a string, which is copied before the function runs again.
    Err(unsafe { CStr::from_ptr(cause) }.to_string_lossy().into_owned())
}
