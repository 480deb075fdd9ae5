//! Non-blocking and planned calls.

use std::time::Duration;

use unisono::{Buffer, Communicator, Planned, Request, Result};

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
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A request, and a function of its result, which is called unless the call has failed.
impl<B: Send, F: FnOnce(B) + Send> InFlight for (Request<B>, F) {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn wait_for(&self, timeout: Duration) -> bool {
        self.0.wait_for(timeout)
    }

    fn is_driven(&self) -> bool {
        self.0.is_driven()
    }

    fn wait_until(&self, is_done: &dyn Fn() -> bool) {
        self.0.wait_until(is_done);
    }

    fn wait(self: Box<Self>) -> Result<()> {
        let (request, then) = *self;
        request.wait().map(then)
    }
}

/// A planned call, independent of its buffer.
pub trait Plan: Send {
    /// Starts the call.
    fn start(&mut self, comm: &mut Communicator) -> Result<()>;

    /// Waits until it is done.
    fn wait(&mut self, comm: &mut Communicator) -> Result<()>;

    /// Returns whether it is started and not waited for.
    fn is_started(&self) -> bool;
}

impl<B: Buffer> Plan for Planned<B> {
    fn start(&mut self, comm: &mut Communicator) -> Result<()> {
        Planned::start(self, comm)
    }

    fn wait(&mut self, comm: &mut Communicator) -> Result<()> {
        Planned::wait(self, comm)
    }

    fn is_started(&self) -> bool {
        Planned::is_started(self)
    }
}
