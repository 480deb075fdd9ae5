//! Time, sleeps and yields of waits. A test may replace them by the virtual time of a [simulation](super::tcp).

#[cfg(not(test))]
pub(super) use std::thread::sleep;
#[cfg(not(test))]
use std::time::Instant;

#[cfg(not(test))]
use super::slice;

#[cfg(test)]
pub(super) use super::tcp::tests::simulation::{now, sleep, yield_now};

#[cfg(not(test))]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Yields to another thread, with a short time slice for it.
#[cfg(not(test))]
pub(super) fn yield_now() {
    slice::shorten();
    std::thread::yield_now();
}
