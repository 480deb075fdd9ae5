//! Waits of a thread for other ranks: the lengths of its naps, and a callback of the program that runs meanwhile.

use std::cell::Cell;
use std::time::Duration;

/// A callback that runs during waits. An error ends the wait.
pub type WhileWaiting = fn() -> Result<(), String>;

/// The shortest time between polls of a wait that sleeps.
pub(crate) const NAP: Duration = Duration::from_micros(50);
/// The longest time between polls of a wait that has lasted for seconds.
const LONGEST_NAP: Duration = Duration::from_millis(1);
/// A nap is this part of the wait so far, so that a long wait uses little of its core, and its end is noticed late by as little.
const NAPS_PER_WAIT: u32 = 2000;

/// Returns the time to sleep between polls in a wait that has lasted this long.
pub(crate) fn nap_after(waited: Duration) -> Duration {
    (waited / NAPS_PER_WAIT).clamp(NAP, LONGEST_NAP)
}

thread_local! {
    static CURRENT: Cell<Option<WhileWaiting>> = const { Cell::new(None) };
}

/// Makes calls during which a callback of the program runs while this thread waits for other ranks: to check for an interrupt, or
/// to make progress on other work.
///
/// The callback runs about every 100 µs in waits that are longer than that, and not at all in shorter ones. It must not use the
/// communicator. If it returns an error, the call fails with [`Error::Aborted`](crate::Error::Aborted) and this cause, on all
/// ranks. A wait for a non-blocking collective runs it too, and its error ends the collective.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// static INTERRUPTED: AtomicBool = AtomicBool::new(false);
///
/// fn interrupt() -> Result<(), String> {
///     if INTERRUPTED.load(Ordering::Relaxed) { Err("interrupted".to_owned()) } else { Ok(()) }
/// }
///
/// let ended = unisono::threads(2, |mut comm| {
///     if comm.rank() == 1 {
///         INTERRUPTED.store(true, Ordering::Relaxed);
///         std::thread::sleep(std::time::Duration::from_millis(100));
///     }
///     unisono::while_waiting(interrupt, || comm.barrier())
/// });
/// assert!(ended[0].as_ref().unwrap_err().to_string().contains("interrupted"), "{ended:?}");
/// ```
pub fn while_waiting<R>(callback: WhileWaiting, calls: impl FnOnce() -> R) -> R {
    let _before = Before(CURRENT.replace(Some(callback)));
    calls()
}

/// Restores the callback of the enclosing scope, even if a call panics.
struct Before(Option<WhileWaiting>);

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

pub(crate) fn is_set() -> bool {
    CURRENT.get().is_some()
}

/// Runs the callback of this thread, if it has one. An error is the cause for which the program ends the wait.
pub(crate) fn run() -> Result<(), String> {
    CURRENT.get().map_or(Ok(()), |callback| callback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_of_the_innermost_scope_runs() {
        let cause = |cause: &str| Err(cause.to_owned());
        while_waiting(
            || Err("outer".to_owned()),
            || {
                assert_eq!(run(), cause("outer"));
                while_waiting(|| Err("inner".to_owned()), || assert_eq!(run(), cause("inner")));
                assert_eq!(run(), cause("outer"));
            },
        );
        assert_eq!(run(), Ok(()));
    }
}
