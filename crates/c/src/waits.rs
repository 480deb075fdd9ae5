//! A function of the program that runs while a thread waits for other ranks.

use std::cell::Cell;
use std::ffi::c_int;

/// A function that runs during waits. Returns 0, or anything else to end the wait.
pub type Look = Option<unsafe extern "C" fn() -> c_int>;

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(None) };
}

/// Makes blocking calls on this thread run a function about every 100 µs while they wait for other ranks: to make progress with something
/// else, or to hear an interrupt. NULL ends that. The function must not use a communicator of this library. If it does not return 0,
/// the call fails with UNISONO_ERROR_ABORTED, on all ranks.
///
/// # Safety
/// The function must be callable until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unisono_while_waiting(look: Look) {
    LOOK.set(look);
}

/// Makes a call that runs the function of this thread, if there is one, while it waits.
#[inline]
pub(crate) fn looking<R>(call: impl FnOnce() -> R) -> R {
    if LOOK.get().is_none() { call() } else { unisono::while_waiting(run, call) }
}

fn run() -> Result<(), String> {
    let Some(look) = LOOK.get() else { return Ok(()) };
    // SAFETY: as the caller of `unisono_while_waiting` promises.
    match unsafe { look() } {
        0 => Ok(()),
        code => Err(format!("the program's function that runs during waits returned {code}")),
    }
}
