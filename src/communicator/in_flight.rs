//! Collectives that go on beside what their caller does next: the non-blocking form of each.

use std::ops::DerefMut;

use unisono_collectives::{Operation, Rank};

use super::Communicator;
use crate::call::Call;
use crate::collective::{Engine, Options};
use crate::dtype::Element;
use crate::error::Result;
use crate::kernels::ReduceOp;
use crate::request::Request;
use crate::select::Choice;

impl Communicator {
    /// Begins an all-reduce that goes on beside what this thread does next, on the communication thread.
    ///
    /// The buffer is a vector, [registered memory](Communicator::alloc), or whatever else owns a slice. It goes into
    /// the call and comes back from [`Request::wait`]. Several calls may be in flight; they are carried out in the
    /// order in which they were made, which is the same on all ranks. A blocking call first waits for all
    /// that is in flight. It is the same call as its non-blocking form: one rank may block where another does not.
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
    /// [`Error::Aborted`](crate::Error::Aborted) after a failure that this thread knows of. What goes wrong later, [`Request::wait`]
    /// says.
    pub fn all_reduce_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::AllReduce, Some(op), buffer)
    }

    /// Begins a [`Communicator::reduce_scatter`], with a buffer as [`Communicator::all_reduce_async`] takes it.
    ///
    /// The whole buffer comes back. This rank's part of the reduction is at
    /// [`own_part(buffer.len())`](Communicator::own_part); the rest is undefined.
    ///
    /// ```
    /// use unisono::ReduceOp;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let scattered = comm.reduce_scatter_async(vec![1.0_f32; 1000], ReduceOp::Sum)?;
    ///     let own = comm.own_part(1000);
    ///     assert_eq!(scattered.wait()?[own], [2.0; 500]);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn reduce_scatter_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::ReduceScatter, Some(op), buffer)
    }

    /// Begins a [`Communicator::all_gather`], with a buffer as [`Communicator::all_reduce_async`] takes it: it brings
    /// [this rank's own part](Communicator::own_part), and comes back with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn all_gather_async<T: Element, B>(&mut self, buffer: B) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::AllGather, None, buffer)
    }

    /// Begins a [`Communicator::broadcast`], with a buffer as [`Communicator::all_reduce_async`] takes it: on every rank
    /// it comes back with what the root's held.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn broadcast_async<T: Element, B>(&mut self, buffer: B, root: Rank) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::Broadcast { root }, None, buffer)
    }

    /// Begins a [`Communicator::reduce`], with a buffer as [`Communicator::all_reduce_async`] takes it: the root's comes
    /// back with the reduction of all buffers; what the others' hold then is undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn reduce_async<T: Element, B>(&mut self, buffer: B, op: ReduceOp, root: Rank) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::Reduce { root }, Some(op), buffer)
    }

    /// Begins a [`Communicator::gather`], with a buffer as [`Communicator::all_reduce_async`] takes it: it brings
    /// [this rank's own part](Communicator::own_part), and the root's comes back with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn gather_async<T: Element, B>(&mut self, buffer: B, root: Rank) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::Gather { root }, None, buffer)
    }

    /// Begins a [`Communicator::scatter`], with a buffer as [`Communicator::all_reduce_async`] takes it.
    ///
    /// The whole buffer comes back. This rank's part of what the root's held is at
    /// [`own_part(buffer.len())`](Communicator::own_part); the rest is undefined, but on the root.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If there is no such root.
    pub fn scatter_async<T: Element, B>(&mut self, buffer: B, root: Rank) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::Scatter { root }, None, buffer)
    }

    /// Begins a [`Communicator::all_to_all`], with a buffer as [`Communicator::all_reduce_async`] takes it: one block for
    /// each rank. It comes back with one block from each.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If the length of the buffer is not a multiple of the number of ranks.
    pub fn all_to_all_async<T: Element, B>(&mut self, buffer: B) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.call_async(Operation::AllToAll, None, buffer)
    }

    /// Begins a [`Communicator::barrier`], which is done once all ranks have called it. Nothing comes back.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let all_are_here = comm.barrier_async()?;
    ///     // Meanwhile this thread computes.
    ///     all_are_here.wait()
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn barrier_async(&mut self) -> Result<Request<()>> {
        self.run_async(Choice::Algorithm(Self::OF_BARRIER), Call::barrier(), (), |()| &mut [])
    }

    /// Begins an operation on a buffer, by what was chosen for it or for all calls.
    fn call_async<T: Element, B>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        let call = self.checked::<T>(operation, op, buffer.len());
        let choice = self.choice_of_call()?.on_host(operation).clone();
        self.run_async(choice, call, buffer, |buffer| bytemuck::cast_slice_mut(buffer))
    }

    /// Gives a call to the communication thread; `bytes` is where the call's elements lie in what goes with it.
    fn run_async<B: Send + 'static>(
        &mut self,
        choice: Choice,
        call: Call,
        buffer: B,
        bytes: fn(&mut B) -> &mut [u8],
    ) -> Result<Request<B>> {
        self.work_async(buffer, move |engine, options, buffer| {
            engine.run(&choice, options, &call, bytes(buffer)).map(drop)
        })
    }

    /// Has the communication thread do this with a buffer, after all that is in flight.
    pub(super) fn work_async<B: Send + 'static>(
        &mut self,
        buffer: B,
        work: impl FnOnce(&mut Engine, &Options, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Request<B>> {
        self.check_in_flight()?;
        let options = self.per_call.options;
        self.seat.send(buffer, move |engine, buffer| work(engine, &options, buffer))
    }

    /// Whether a call can be given to the communication thread, as far as this thread knows.
    pub(super) fn check_in_flight(&self) -> Result<()> {
        self.seat.here().map_or(Ok(()), |here| {
            here.check_alive()?;
            here.transport.check_other_threads()
        })
    }
}
