//! The system's clock.

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic clock in nanoseconds, which is the same for all processes of a node.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
