//! The system's clock.

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic clock in nanoseconds, which is the same for all processes of a node.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// Returns the processor time of this thread in nanoseconds.
#[cfg(feature = "tuning")]
pub(crate) fn thread_time_ns() -> u64 {
    read_ns(ClockId::ThreadCPUTime)
}

#[inline]
fn read_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
