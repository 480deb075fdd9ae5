//! Time, as ranks write it down and as people read it.

use std::fmt;

use rustix::time::{ClockId, clock_gettime};

/// The system's clock, which all processes of a node read alike.
pub(super) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Seconds for a person: 61 s, 0.3 s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 9.95 && self.0.fract() != 0.0 {
            write!(f, "{:.1} s", self.0)
        } else {
            write!(f, "{:.0} s", self.0)
        }
    }
}

/// From one moment to another, in microseconds of the system's clock; nothing if the first is not known.
pub(super) fn seconds_between(then: u64, now: u64) -> f64 {
    if then == 0 { 0.0 } else { now.saturating_sub(then) as f64 / 1e6 }
}
