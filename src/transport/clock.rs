//! The clock of waits and their pauses. A test may put the virtual time of a [simulation](super::tcp) in their place.

#[cfg(not(test))]
pub(super) use std::thread::{sleep, yield_now};
#[cfg(not(test))]
use std::time::Instant;

#[cfg(test)]
pub(super) use super::tcp::tests::simulation::{now, sleep, yield_now};

/// Returns the time.
#[cfg(not(test))]
pub(super) fn now() -> Instant {
    Instant::now()
}
