//! Time, as ranks write it down.

use rustix::time::{ClockId, clock_gettime};

/// The system's clock, which all processes of a node read alike.
pub(super) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// From one moment to another, in microseconds of the system's clock; nothing if the first is not known.
pub(super) fn seconds_between(then: u64, now: u64) -> f64 {
    if then == 0 { 0.0 } else { now.saturating_sub(then) as f64 / 1e6 }
}
