//! Asking a run to save and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that asks a run to save and end after the step that it is in. Whoever has a copy may set it, at any time: a signal
/// handler, another thread, a clock.
///
/// One rank that is asked is enough. That it was travels with the sums that every step adds up, so all ranks end after the same
/// step.
///
/// ```
/// use unisono_train::Stop;
///
/// let stop = Stop::default();          // what `RunSettings::stop` gets
/// let other = stop.clone();            // what the handler gets
/// other.ask();
/// assert!(stop.is_asked());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, which asks when it is `true`: for what can set a flag and do no more, such as a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
