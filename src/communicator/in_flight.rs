//! The non-blocking forms of the collectives.

use std::any::Any;

use unisono_collectives::{Operation, Rank};

use super::Communicator;
use crate::call::Call;
use crate::codes::OF_BARRIER;
use crate::collective::{Engine, Options};
use crate::dtype::Buffer;
use crate::error::{Error, Result};
use crate::kernels::ReduceOp;
use crate::request::{Request, cause_of_reduction};
use crate::select::Choice;

impl Communicator {
    /// Starts a non-blocking all-reduce, which runs on the communication thread.
    ///
    /// The call takes ownership of the buffer (a vector, [registered memory](Communicator::alloc), or anything else that owns a
    /// slice), and [`Request::wait`] returns it. Several calls may be in flight; they run in the order in which they were
    /// started, which is the same on all ranks. A blocking collective first waits for all collectives in flight. Blocking and non-blocking
    /// forms match each other: one rank may block where another does not.
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
    /// [`Error::Unsupported`](crate::Error::Unsupported) if MPI was initialised with `MPI_THREAD_SINGLE` or
    /// `MPI_THREAD_FUNNELED`; [`Error::Failed`](crate::Error::Failed) if the system provides no thread;
    /// [`Error::Aborted`](crate::Error::Aborted) after a failure known to this thread. [`Request::wait`] returns later errors.
    pub fn all_reduce_async<B: Buffer>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>> {
        self.call_async(Operation::AllReduce, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::reduce_scatter`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// The request returns the whole buffer: this rank's part of the reduction is at
    /// [`own_part(buffer.len())`](Communicator::own_part), and the rest is undefined.
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
    pub fn reduce_scatter_async<B: Buffer>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>> {
        self.call_async(Operation::ReduceScatter, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::all_gather`]; it takes a buffer as [`Communicator::all_reduce_async`]
    /// does, with [this rank's own part](Communicator::own_part) in it, and returns it with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn all_gather_async<B: Buffer>(&mut self, buffer: B) -> Result<Request<B>> {
        self.call_async(Operation::AllGather, None, buffer)
    }

    /// Starts the non-blocking form of [`Communicator::broadcast`]; it takes a buffer as [`Communicator::all_reduce_async`]
    /// does, and returns it with the root's values.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn broadcast_async<B: Buffer>(&mut self, buffer: B, root: Rank) -> Result<Request<B>> {
        self.call_async(Operation::Broadcast { root }, None, buffer)
    }

    /// Starts the non-blocking form of [`Communicator::reduce`]; it takes a buffer as [`Communicator::all_reduce_async`]
    /// does. The root's buffer returns with the reduction of all buffers; the others are undefined.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn reduce_async<B: Buffer>(&mut self, buffer: B, op: ReduceOp, root: Rank) -> Result<Request<B>> {
        self.call_async(Operation::Reduce { root }, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::gather`]; it takes a buffer as [`Communicator::all_reduce_async`]
    /// does, with [this rank's own part](Communicator::own_part) in it. The root's buffer returns with all parts.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn gather_async<B: Buffer>(&mut self, buffer: B, root: Rank) -> Result<Request<B>> {
        self.call_async(Operation::Gather { root }, None, buffer)
    }

    /// Starts the non-blocking form of [`Communicator::scatter`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// The request returns the whole buffer: this rank's part of the root's values is at
    /// [`own_part(buffer.len())`](Communicator::own_part), and the rest is undefined, except on the root.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If `root` is not a rank of this world.
    pub fn scatter_async<B: Buffer>(&mut self, buffer: B, root: Rank) -> Result<Request<B>> {
        self.call_async(Operation::Scatter { root }, None, buffer)
    }

    /// Starts the non-blocking form of [`Communicator::scan`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn scan_async<B: Buffer>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>> {
        self.call_async(Operation::Scan, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::exclusive_scan`]; it takes a buffer as
    /// [`Communicator::all_reduce_async`] does.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    pub fn exclusive_scan_async<B: Buffer>(&mut self, buffer: B, op: ReduceOp) -> Result<Request<B>> {
        self.call_async(Operation::ExclusiveScan, Some(op), buffer)
    }

    /// Starts the non-blocking form of [`Communicator::all_to_all`]; it takes a buffer as [`Communicator::all_reduce_async`]
    /// does, with one block for each rank, and returns it with one block from each.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// If the length of the buffer is not a multiple of the number of ranks.
    pub fn all_to_all_async<B: Buffer>(&mut self, buffer: B) -> Result<Request<B>> {
        self.call_async(Operation::AllToAll, None, buffer)
    }

    /// Starts the non-blocking form of [`Communicator::barrier`]; it completes once all ranks have called
    /// it.
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
        self.work_async((), |engine, options, ()| {
            engine.run(&Choice::from(OF_BARRIER), options, &Call::barrier(), &mut []).map(drop)
        })
    }

    /// Starts an operation on a buffer, by the algorithm chosen for it or for all calls; public for `unisono-bindings`.
    #[doc(hidden)]
    pub fn call_async<B: Buffer>(
        &mut self,
        operation: Operation,
        op: Option<ReduceOp>,
        buffer: B,
    ) -> Result<Request<B>> {
        let call = self.checked::<B::Element>(operation, op, buffer.len());
        let choice = self.choice_of_call()?.on_host(operation).clone();
        self.work_async(buffer, move |engine, options, buffer| {
            engine.run(&choice, options, &call, bytemuck::cast_slice_mut(buffer)).map(drop)
        })
    }

    /// Returns the error of a blocking call that [`fail_reduction`](crate::fail_reduction) has ended, and loses this communicator; the panic if
    /// another one ended the call.
    #[doc(hidden)]
    pub fn error_of_reduction(&mut self, panic: Box<dyn Any + Send>) -> Result<Error, Box<dyn Any + Send>> {
        cause_of_reduction(panic).map(|cause| self.engine_owner.engine().fail_by_reduction(cause))
    }

    /// Runs `work`, which consists of calls of other communicators, on this thread, after all calls in flight. If it fails, so does this
    /// communicator. Public for `unisono-compress`.
    ///
    /// # Errors
    /// The errors of `work`. A fatal error also loses this communicator.
    #[doc(hidden)]
    pub fn work<R>(&mut self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let engine = self.engine_owner.engine();
        engine.begin()?;
        let done = work();
        engine.settle(done)
    }

    /// Runs `work` on the communication thread, after all calls in flight.
    pub(crate) fn work_async<B: Send + 'static>(
        &mut self,
        buffer: B,
        work: impl FnOnce(&mut Engine, &Options, &mut B) -> Result<()> + Send + 'static,
    ) -> Result<Request<B>> {
        self.check_in_flight()?;
        let options = self.per_call.options.clone();
        self.engine_owner.send(buffer, move |engine, buffer| work(engine, &options, buffer))
    }

    /// Checks that no rank has failed, as at the start of a call, unless the communication thread has the engine.
    #[inline]
    pub(super) fn begin_here(&mut self) -> Result<()> {
        self.engine_owner.here_mut().map_or(Ok(()), Engine::begin)
    }

    /// Checks, without waiting, that the communication thread can accept a call.
    pub(super) fn check_in_flight(&self) -> Result<()> {
        self.engine_owner.here().map_or(Ok(()), |here| {
            here.check_alive()?;
            here.transport.check_other_threads()
        })
    }
}
