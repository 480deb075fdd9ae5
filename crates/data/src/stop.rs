//! Requests to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that ends a wait for data servers, or makes a training run save and stop after the current step. Any copy may set it at any time: in a
/// signal handler, another thread or a timer.
///
/// In a training run, setting it on one rank is enough. The request travels with the sums of every step, so all ranks stop after the same step.
///
/// ```
/// use unisono_data::Stop;
///
/// let stop = Stop::default();          // for `Options::stop` or the settings of a run
/// let other = stop.clone();            // for the handler
/// other.ask();
/// assert!(stop.is_asked());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Requests a stop.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether a stop was requested.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for code that can only set a flag, such as a signal handler. The value `true` requests a stop.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
