//! Point-to-point messages, blocking and non-blocking.

use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::request::Request;

impl Communicator {
    /// Sends values to rank `to`, which [receives](Communicator::receive) the same number of the same type (`MPI_Send`).
    ///
    /// Messages between two ranks arrive in the order sent, collectives included. There are no tags: send a message that is
    /// received after a collective after that collective. Other ranks need not take part.
    ///
    /// Between ranks of a node, a message of at most 4 KiB is *eager*: the call copies it and returns, unless four messages
    /// before it are still unreceived. A longer one is a *rendezvous*: the receiver reads it in place or in pieces, and the call
    /// waits for it. Between nodes, the call returns when MPI no longer needs the values. Two ranks that both send first and
    /// then receive may therefore deadlock until the timeout; use [`Communicator::exchange`] instead.
    ///
    /// A wait for the other rank has the deadline of a collective ([`Communicator::set_timeout`]), and that of the first call as
    /// long as this rank has made no collective. [`Communicator::call`] sets a label, which must be the same on both ranks, and
    /// a deadline for one message. Messages do not appear in the flight recorder, and ranks do not warn about waits for them.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() == 0 {
    ///         comm.send(&[1.0_f32, 2.0, 3.0], 1)?;
    ///     } else {
    ///         let mut values = [0.0_f32; 3];
    ///         comm.receive(&mut values, 0)?;
    ///         assert_eq!(values, [1.0, 2.0, 3.0]);
    ///     }
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout), [`Error::Left`](crate::Error::Left) and
    /// [`Error::Aborted`](crate::Error::Aborted) if the other rank does not receive it, [`Error::Failed`](crate::Error::Failed)
    /// if this rank cannot continue. If the two ranks disagree on a message, the receiver gets the error, and a sender that does
    /// not wait for it gets it in a later call.
    ///
    /// # Panics
    /// If `to` is not a rank of this world, or is this rank.
    pub fn send<T: Element>(&mut self, values: &[T], to: Rank) -> Result<()> {
        self.check_other(to);
        self.seat.engine().messages(&self.per_call.options, T::DTYPE, Some((cast_slice(values), to)), None)
    }

    /// Receives the next message from rank `from`, of exactly this number of values of this type (`MPI_Recv`).
    /// [`Communicator::send`] has an example and describes the order of messages.
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the message has another count, type or label, or belongs to a collective:
    /// it names the calls of both ranks. [`Error::Timeout`](crate::Error::Timeout), [`Error::Left`](crate::Error::Left) and
    /// [`Error::Aborted`](crate::Error::Aborted) if the other rank does not send it, [`Error::Failed`](crate::Error::Failed) if
    /// this rank cannot continue. `values` is then undefined.
    ///
    /// # Panics
    /// If `from` is not a rank of this world, or is this rank.
    pub fn receive<T: Element>(&mut self, values: &mut [T], from: Rank) -> Result<()> {
        self.check_other(from);
        self.seat.engine().messages(
            &self.per_call.options,
            T::DTYPE,
            None,
            Some((cast_slice_mut(values), from)),
        )
    }

    /// Receives the first message available from any other rank, and returns that rank (`MPI_Recv` with `MPI_ANY_SOURCE`). If
    /// several are available, ranks take turns.
    ///
    /// It skips a rank whose next message belongs to a collective, since that rank may be ahead.
    ///
    /// ```
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() > 0 {
    ///         return comm.send(&[comm.rank() as u64], 0);
    ///     }
    ///     for _ in 1..comm.ranks() {
    ///         let mut value = [0_u64];
    ///         let from = comm.receive_any(&mut value)?;
    ///         assert_eq!(value, [from as u64]);
    ///     }
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::receive`]. A [timeout](crate::Error::Timeout) names one of the ranks waited for;
    /// [`Error::Left`](crate::Error::Left) is returned only once all of them have left.
    ///
    /// # Panics
    /// If there is no other rank.
    pub fn receive_any<T: Element>(&mut self, values: &mut [T]) -> Result<Rank> {
        self.check_any_other();
        self.seat.engine().receive_any(&self.per_call.options, T::DTYPE, cast_slice_mut(values))
    }

    /// Sends values to rank `to` and receives others from rank `from` at the same time (`MPI_Sendrecv`). Ranks that exchange
    /// pairwise or around a ring do not deadlock, whatever the size. `to` and `from` may be the same rank, and the two messages
    /// may differ in length. The other ranks may also use [`send`](Communicator::send) and [`receive`](Communicator::receive).
    ///
    /// ```
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<()> {
    ///     let (rank, ranks) = (comm.rank(), comm.ranks());
    ///     let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    ///     let mut received = vec![0_u64; 10_000];
    ///     comm.exchange(&vec![rank as u64; 10_000], next, &mut received, previous)?;
    ///     assert!(received.iter().all(|&value| value == previous as u64));
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::receive`] and [`Communicator::send`].
    ///
    /// # Panics
    /// As [`Communicator::send`], for both ranks.
    pub fn exchange<T: Element>(
        &mut self,
        values: &[T],
        to: Rank,
        received: &mut [T],
        from: Rank,
    ) -> Result<()> {
        self.check_other(to);
        self.check_other(from);
        let (outgoing, incoming) = ((cast_slice(values), to), (cast_slice_mut(received), from));
        self.seat.engine().messages(&self.per_call.options, T::DTYPE, Some(outgoing), Some(incoming))
    }

    /// The non-blocking form of [`Communicator::send`] (`MPI_Isend`). It takes a vector, [registered
    /// memory](Communicator::alloc), or anything else that owns a slice; [`Request::wait`] returns it.
    ///
    /// Unlike in MPI, the calls in flight on a rank run one after the other in the order in which they were started, as for
    /// [`Communicator::all_reduce_async`]: a receive in flight delays a send behind it. Ranks that send to each other use
    /// [`Communicator::exchange_async`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`]; [`Request::wait`] returns later errors.
    ///
    /// # Panics
    /// As [`Communicator::send`].
    pub fn send_async<T: Element, B>(&mut self, values: B, to: Rank) -> Result<Request<B>>
    where
        B: Deref<Target = [T]> + Send + 'static,
    {
        self.check_other(to);
        self.work_async(values, move |engine, options, values| {
            engine.messages(options, T::DTYPE, Some((cast_slice(values), to)), None)
        })
    }

    /// The non-blocking form of [`Communicator::receive`] (`MPI_Irecv`), in the order of the calls in flight as
    /// [`Communicator::send_async`] describes. [`Request::wait`] returns the buffer with the received values.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() == 0 {
    ///         comm.send_async(vec![1.0_f32; 1000], 1)?.wait()?;
    ///     } else {
    ///         let request = comm.receive_async(vec![0.0_f32; 1000], 0)?;
    ///         // Meanwhile this thread computes.
    ///         assert_eq!(request.wait()?, vec![1.0; 1000]);
    ///     }
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send_async`].
    ///
    /// # Panics
    /// As [`Communicator::receive`].
    pub fn receive_async<T: Element, B>(&mut self, values: B, from: Rank) -> Result<Request<B>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.check_other(from);
        self.work_async(values, move |engine, options, values| {
            engine.messages(options, T::DTYPE, None, Some((cast_slice_mut(values), from)))
        })
    }

    /// The non-blocking form of [`Communicator::receive_any`] (`MPI_Irecv` with `MPI_ANY_SOURCE`), in the order of the calls in
    /// flight as [`Communicator::send_async`] describes. The request returns the sender and the buffer with the received values.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() == 1 {
    ///         return comm.send(&[1.0_f32; 1000], 0);
    ///     }
    ///     let request = comm.receive_any_async(vec![0.0_f32; 1000])?;
    ///     assert_eq!(request.wait()?, (1, vec![1.0; 1000]));
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// As [`Communicator::send_async`].
    ///
    /// # Panics
    /// As [`Communicator::receive_any`].
    pub fn receive_any_async<T: Element, B>(&mut self, values: B) -> Result<Request<(Rank, B)>>
    where
        B: DerefMut<Target = [T]> + Send + 'static,
    {
        self.check_any_other();
        self.work_async((self.rank(), values), |engine, options, (from, values)| {
            *from = engine.receive_any(options, T::DTYPE, cast_slice_mut(values))?;
            Ok(())
        })
    }

    /// The non-blocking form of [`Communicator::exchange`] (`MPI_Isendrecv`), in the order of the calls in flight as
    /// [`Communicator::send_async`] describes. The request returns both buffers: the values sent and those received.
    ///
    /// # Errors
    /// As [`Communicator::send_async`].
    ///
    /// # Panics
    /// As [`Communicator::exchange`].
    pub fn exchange_async<T: Element, B, C>(
        &mut self,
        values: B,
        to: Rank,
        received: C,
        from: Rank,
    ) -> Result<Request<(B, C)>>
    where
        B: Deref<Target = [T]> + Send + 'static,
        C: DerefMut<Target = [T]> + Send + 'static,
    {
        self.check_other(to);
        self.check_other(from);
        self.work_async((values, received), move |engine, options, (values, received)| {
            let (outgoing, incoming) = ((cast_slice(values), to), (cast_slice_mut(received), from));
            engine.messages(options, T::DTYPE, Some(outgoing), Some(incoming))
        })
    }

    /// # Panics
    /// If there is no other rank.
    fn check_any_other(&self) {
        assert!(self.ranks() > 1, "a world of one rank has no messages to receive");
    }

    /// # Panics
    /// If `other` is not a rank of this world, or is this rank.
    fn check_other(&self, other: Rank) {
        let (rank, ranks) = (self.rank(), self.ranks());
        assert!(other < ranks, "rank {other} is not in a world of {ranks} ranks");
        assert_ne!(other, rank, "rank {rank} has no messages to itself");
    }
}
