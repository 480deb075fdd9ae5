//! Polling NCCL, which only reports whether a call has completed.

use std::time::{Duration, Instant};

use crate::error::Result;

/// The number of polls without a pause: enqueuing takes a few microseconds.
const SPINS: u32 = 200;
/// How long the thread only yields between two polls: connecting ranks takes milliseconds.
const AWAKE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(200);

/// Polls until `is_done` returns true. The inner error is the time waited, once it exceeds the timeout.
pub(super) fn poll(
    timeout: Duration,
    mut is_done: impl FnMut() -> Result<bool>,
) -> Result<Result<(), Duration>> {
    let started = Instant::now();
    let mut asked: u32 = 0;
    loop {
        if is_done()? {
            return Ok(Ok(()));
        }
        asked = asked.saturating_add(1);
        if asked < SPINS {
            std::hint::spin_loop();
            continue;
        }
        let waited = started.elapsed();
        if waited > timeout {
            return Ok(Err(waited));
        }
        if waited < AWAKE {
            std::thread::yield_now();
        } else {
            std::thread::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn it_ends_with_yes_with_an_error_or_at_the_deadline() {
        let timeout = Duration::from_millis(30);
        let mut answers = (0..5000).map(|answer| answer == 4999);
        assert_eq!(poll(timeout * 1000, || Ok(answers.next().unwrap())).unwrap(), Ok(()));
        assert!(poll(timeout, || Err(Error::Library("gone".to_owned()))).is_err());
        let waited = poll(timeout, || Ok(false)).unwrap().unwrap_err();
        assert!(waited > timeout);
    }
}
