//! The patience of a process that waits for another.

use std::time::{Duration, Instant};

/// Waits as long as something changes, and then so long.
#[derive(Debug)]
pub(crate) struct Patience<P> {
    limit: Duration,
    /// The progress of the other process, and its time.
    seen: Option<P>,
    since: Instant,
}

impl<P: PartialEq> Patience<P> {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, seen: None, since: Instant::now() }
    }

    /// Returns whether nothing has changed for too long. `progress` says how far the other process is.
    pub(crate) fn has_ended(&mut self, progress: P) -> bool {
        if self.seen.as_ref() != Some(&progress) {
            (self.seen, self.since) = (Some(progress), Instant::now());
        }
        self.since.elapsed() > self.limit
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn patience_ends_when_nothing_changes() {
        let mut patience = Patience::new(Duration::from_millis(40));
        for progress in 0..5 {
            assert!(!patience.has_ended(progress));
            thread::sleep(Duration::from_millis(50));
        }
        assert!(patience.has_ended(4));
        assert!(!patience.has_ended(5));
    }
}
