//! Time, sleeps and yields of waits. A test may replace them by the virtual time of a [simulation](super::tcp).

use std::cell::Cell;
#[cfg(not(test))]
pub(super) use std::thread::sleep;
#[cfg(not(test))]
use std::time::Instant;

#[cfg(test)]
pub(super) use super::tcp::tests::simulation::{now, sleep, yield_now};

/// The shortest slice that Linux grants, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

thread_local! {
    static IS_SHORT: Cell<bool> = const { Cell::new(false) };
}

#[cfg(not(test))]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Yields to another thread, with a short time slice for it.
#[cfg(not(test))]
pub(super) fn yield_now() {
    shorten_slice();
    std::thread::yield_now();
}

/// Shortens the time slice of this thread, once.
///
/// Linux charges a thread that yields for the rest of its slice. With the usual 3 ms, a rank that shares its core with a thread that computes
/// waits that long after each yield, although its message arrives within microseconds. Slices can be set since Linux 6.12. Earlier versions
/// ignore the value, and if the system refuses the call, the thread keeps its slice. In both cases waits are only slower.
fn shorten_slice() {
    if IS_SHORT.replace(true) {
        return;
    }
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the structure has integers only, for which zeros are valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the system writes at most `size` bytes to the structure, which is alive.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    // Real-time threads have no slice.
    if got == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SHORTEST_NS;
        // SAFETY: the system only reads the structure, whose size it has written there.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortening_keeps_the_policy_and_priority() {
        let priority = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields: Vec<_> =
                stat.rsplit(')').next().unwrap().split_whitespace().map(str::to_owned).collect();
            // Priority, niceness and policy: proc(5).
            [15, 16, 38].map(|place| fields[place].clone())
        };
        let before = priority();
        shorten_slice();
        assert_eq!(priority(), before);
    }
}
