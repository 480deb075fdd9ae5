//! Non-blocking calls.

use std::time::Duration;

use unisono::{Request, Result};

/// A call in flight, independent of its buffer.
pub trait InFlight: Send {
    /// [`Request::is_done`].
    fn is_done(&self) -> bool;

    /// [`Request::wait_for`].
    fn wait_for(&self, timeout: Duration) -> bool;

    /// [`Request::is_driven`].
    fn is_driven(&self) -> bool;

    /// [`Request::wait_until`].
    fn wait_until(&self, is_done: &dyn Fn() -> bool);

    /// Waits until it is done.
    ///
    /// # Errors
    /// As [`Request::wait`].
    fn wait(self: Box<Self>) -> Result<()>;
}

impl<B: Send> InFlight for Request<B> {
    fn is_done(&self) -> bool {
        Request::is_done(self)
    }

    fn wait_for(&self, timeout: Duration) -> bool {
        Request::wait_for(self, timeout)
    }

    fn is_driven(&self) -> bool {
        Request::is_driven(self)
    }

    fn wait_until(&self, is_done: &dyn Fn() -> bool) {
        Request::wait_until(self, is_done);
    }

    fn wait(self: Box<Self>) -> Result<()> {
        Request::wait(*self).map(drop)
    }
}
