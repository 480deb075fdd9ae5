//! A function of the program that runs while a thread waits for other ranks.

use std::cell::Cell;
use std::ffi::c_char;

use super::comm::text;

/// A function that runs during waits. Returns NULL, or a text that says why the wait is to end.
pub type Look = Option<unsafe extern "C" fn() -> *const c_char>;

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(None) };
}

/// Makes blocking calls on this thread run a function about every 100 µs while they wait for other ranks: to make progress with something
/// else, or to hear an interrupt. NULL ends that. The function must not use a communicator of this library. If it returns a text,
/// the call fails with it on this rank, and with UNISONO_ERROR_ABORTED and the text on the others.
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
    // SAFETY: as the caller of `unisono_while_waiting` promises; the text is used before the function runs again.
    match unsafe { text(look(), "the cause that the program gives") } {
        Ok(None) => Ok(()),
        Ok(Some(cause)) => Err(cause.to_owned()),
        Err(_) => Err("the program gives a cause that is not UTF-8".to_owned()),
    }
}
