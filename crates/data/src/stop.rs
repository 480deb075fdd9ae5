//! Requests to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that asks a wait for data servers to end, or a training run to save and stop after the current step. Anything that has a copy
/// may set it at any time: a signal handler, another thread, a timer.
///
/// In a training run, asking one rank is enough. The request travels with the sums of every step, so all ranks stop after the same
/// step.
///
/// ```
/// use unisono_data::Stop;
///
/// let stop = Stop::default();          // what `Options::stop` or the settings of a run get
/// let other = stop.clone();            // what the handler gets
/// other.ask();
/// assert!(stop.is_asked());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks to stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether somebody asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, `true` to ask: for code that can only set a flag, such as a signal handler.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
