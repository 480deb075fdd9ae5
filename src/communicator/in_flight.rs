//! All-reduces that go on beside what their caller does next.

use std::ops::DerefMut;

use unisono_collectives::Operation;

use super::Communicator;
use crate::call::Call;
use crate::dtype::Element;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::pending::Pending;

impl Communicator {
    /// Begins an all-reduce that goes on beside what this thread does next, on the communication thread.
    ///
    /// The buffer is a vector, [registered memory](Communicator::alloc), or whatever else owns a slice. It goes into
    /// the call and comes back from [`Pending::wait`]. Several calls may be in flight; they are carried out in the
    /// order in which they were made, which is the same on all ranks. A blocking call first waits for all
    /// that is in flight.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let first = comm.all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum)?;
    ///     let second = comm.all_reduce_async(vec![2.0_f32; 1000], ReduceOp::Sum)?;
    ///     // Meanwhile this thread computes.
    ///     assert_eq!(first.wait()?[0], 2.0);
    ///     assert_eq!(second.wait()?[0], 4.0);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if MPI was initialised so that only one thread may call it;
    /// [`Error::Aborted`](crate::Error::Aborted) after a failure that this thread knows of. What goes wrong later, [`Pending::wait`]
    /// says.
    pub fn all_reduce_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp) -> Result<Pending<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.check_in_flight()?;
        let choice = self.choice.on_host(Operation::AllReduce).clone();
        let call = Call::all_reduce(T::DTYPE, op, buffer.len());
        let label = std::mem::take(&mut self.label);
        self.seat.send(buffer, move |engine, buffer| {
            engine.label = label;
            engine.run(&choice, &call, bytemuck::cast_slice_mut(buffer)).map(drop)
        })
    }

    /// Whether a call can be given to the communication thread, as far as this thread knows.
    pub(super) fn check_in_flight(&self) -> Result<()> {
        self.seat.here().map_or(Ok(()), |here| {
            here.check_alive()?;
            here.transport.check_other_threads()
        })
    }
}
