//! Messages from one rank to another, and the non-blocking form of each.

use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::Element;
use crate::error::Result;
use crate::request::Request;

impl Communicator {
    /// Sends these values to rank `to`, which [receives](Communicator::receive) as many of the same type (`MPI_Send`).
    ///
    /// What one rank sends to another arrives in the order in which it was sent, messages and collectives alike: there are no tags,
    /// and a message that is to be received after a collective is sent after it. Ranks that take no part need not know.
    ///
    /// A message of at most 4 KiB between ranks of a node is *eager*: it is copied at once, and the call returns, unless four that
    /// nobody has received lie before it. A longer one is read where it lies, or in pieces, so the call waits until the receiver
    /// takes it.
    /// Between nodes it returns when MPI needs the values no more. Two ranks that first send to each other and then receive may
    /// so wait for each other, up to the deadline: [`Communicator::exchange`] does both at the same time.
    ///
    /// A wait for the other rank has the deadline of a collective ([`Communicator::set_timeout`]): that of the first, as long as this
    /// rank has made none. The message may have a label, which both ranks give it, and a deadline of its own
    /// ([`Communicator::call`]). Messages are not in the flight recorder, and nobody is warned of a wait for one.
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
    /// [`Error::Aborted`](crate::Error::Aborted) if the other rank does not receive it,
    /// [`Error::Failed`](crate::Error::Failed) if this rank cannot go on. Of ranks that disagree on a message the receiver says so,
    /// and a sender that has not to wait for it learns of it in a later call.
    ///
    /// # Panics
    /// If there is no such rank, or if it is this one: a rank does not send to itself.
    pub fn send<T: Element>(&mut self, values: &[T], to: Rank) -> Result<()> {
        self.check_other(to);
        self.seat.engine().messages(&self.per_call.options, T::DTYPE, Some((cast_slice(values), to)), None)
    }

    /// Receives what rank `from` has sent next to this one: exactly so many values of this type (`MPI_Recv`). For an example, and for
    /// the order of messages, see [`Communicator::send`].
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if what comes has another count, type or label, or is of a collective: it names
    /// what both ranks called. [`Error::Timeout`](crate::Error::Timeout), [`Error::Left`](crate::Error::Left) and
    /// [`Error::Aborted`](crate::Error::Aborted) if the other rank does not send it,
    /// [`Error::Failed`](crate::Error::Failed) if this rank cannot go on. What is then in `values` is undefined.
    ///
    /// # Panics
    /// If there is no such rank, or if it is this one: a rank sends nothing to itself.
    pub fn receive<T: Element>(&mut self, values: &mut [T], from: Rank) -> Result<()> {
        self.check_other(from);
        self.seat.engine().messages(
            &self.per_call.options,
            T::DTYPE,
            None,
            Some((cast_slice_mut(values), from)),
        )
    }

    /// Receives a message from whichever other rank's is there first, and says whose it is (`MPI_Recv` from `MPI_ANY_SOURCE`). Where
    /// several are there, the ranks take turns.
    ///
    /// A rank whose next message is of a collective is passed over: it may be ahead already.
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
    /// As [`Communicator::receive`]. Of a [timeout](crate::Error::Timeout) the error names one of the ranks that it waited for;
    /// that [ranks have left](crate::Error::Left) is one when all of them have.
    ///
    /// # Panics
    /// If there is no other rank.
    pub fn receive_any<T: Element>(&mut self, values: &mut [T]) -> Result<Rank> {
        assert!(self.ranks() > 1, "a rank that is alone receives nothing");
        self.seat.engine().receive_any(&self.per_call.options, T::DTYPE, cast_slice_mut(values))
    }

    /// Sends values to rank `to` and receives others from rank `from` at the same time (`MPI_Sendrecv`), which may be one rank or two:
    /// whatever the size, ranks that do so to each other, or around a ring, do not wait for each other's receive. The two
    /// messages may differ in length. A rank at the other end may as well [send](Communicator::send) or
    /// [receive](Communicator::receive) its message by itself.
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

    /// Begins a [`Communicator::send`] that goes on beside what this thread does next (`MPI_Isend`). The values are a vector,
    /// [registered memory](Communicator::alloc), or whatever else owns a slice, and come back from [`Request::wait`].
    ///
    /// Unlike MPI's, what is in flight on a rank is carried out in the order in which it was begun, one after the other, as of
    /// [`Communicator::all_reduce_async`]: a receive in flight keeps a send behind it waiting. Ranks that send to each other do so by
    /// [`Communicator::exchange_async`].
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`]; what goes wrong later, [`Request::wait`] says.
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

    /// Begins a [`Communicator::receive`], in the order of all that is in flight, as [`Communicator::send_async`] says
    /// (`MPI_Irecv`). The buffer comes back from [`Request::wait`] with what was received.
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

    /// Begins a [`Communicator::exchange`], in the order of all that is in flight, as [`Communicator::send_async`] says
    /// (`MPI_Isendrecv`). Both buffers come back: what was sent, and what was received.
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
    /// If there is no such rank, or if it is this one.
    fn check_other(&self, other: Rank) {
        let (rank, ranks) = (self.rank(), self.ranks());
        assert!(other < ranks, "rank {other} is not in a world of {ranks} ranks");
        assert_ne!(other, rank, "rank {rank} has no messages to itself");
    }
}
