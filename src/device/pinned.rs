//! The end of copies between a GPU and pinned memory, which must not be freed before.

use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::DriverError;

/// The interval of polls of a copy, much shorter than the copy of a batch.
pub(super) const NAP: Duration = Duration::from_micros(20);
/// The longest wait for copies in flight before their memory is freed.
pub(super) const LAST_COPIES: Duration = Duration::from_secs(5);

/// Waits until copies are over, at most until a deadline. Otherwise it warns and returns false: the caller leaks their memory, since freeing it
/// would be unsound.
pub(super) fn have_ended(deadline: Instant, are_over: impl Fn() -> Result<bool, DriverError>) -> bool {
    let why = loop {
        match are_over() {
            Ok(true) => return true,
            Ok(false) if Instant::now() < deadline => thread::sleep(NAP),
            Ok(false) => break "they do not end".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    tracing::warn!("the pinned memory of copies to or from a GPU is leaked: {why}");
    false
}
