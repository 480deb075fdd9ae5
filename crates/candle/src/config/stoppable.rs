//! Work that ends on a request to stop, even while it is blocked in a read.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use unisono::panic_text;
use unisono_data::{DataError, Stop};

/// The interval at which requests to stop are polled.
const POLL: Duration = Duration::from_millis(100);

/// Runs this work on another thread. Returns [`DataError::Stopped`] on a request to stop. The work then continues until it or the process ends.
pub(super) fn stoppable<T: Send + 'static>(
    stop: &Stop,
    work: impl FnOnce() -> Result<T, DataError> + Send + 'static,
) -> Result<T, DataError> {
    let (sender, receiver) = sync_channel(1);
    // After a stop, the result is not received.
    let work = move || drop(sender.send(work()));
    let thread = thread::Builder::new()
        .name("data".to_owned())
        .spawn(work)
        .map_err(|error| DataError::Thread { error })?;
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if stop.is_asked() => return Err(DataError::Stopped),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // Not resumed: the report of this rank's failure takes the text from the hook, which runs on its thread.
                let panic = thread.join().expect_err("it has panicked");
                panic!("{}", panic_text(&*panic).unwrap_or("a panic while data were read"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn stop_ends_blocked_work() {
        let stop = Stop::default();
        assert_eq!(stoppable(&stop, || Ok(3)).unwrap(), 3);
        let (_sender, receiver) = mpsc::channel::<()>();
        stop.ask();
        let ended = stoppable(&stop, move || Ok(receiver.recv().is_ok()));
        assert!(matches!(ended, Err(DataError::Stopped)), "{ended:?}");
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn panic_of_the_work_keeps_its_text() {
        let _ = stoppable(&Stop::default(), || -> Result<(), DataError> { panic!("on purpose") });
    }
}
