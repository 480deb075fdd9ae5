//! The clock of recorded times.

use crate::system::now_ns;

/// The system clock, which is the same for all processes of a node.
pub(super) fn now_us() -> u64 {
    now_ns() / 1000
}

/// Returns the seconds between two moments of the system clock in microseconds; 0 if the first is unknown.
pub(super) fn seconds_between(then: u64, now: u64) -> f64 {
    if then == 0 { 0.0 } else { now.saturating_sub(then) as f64 / 1e6 }
}
