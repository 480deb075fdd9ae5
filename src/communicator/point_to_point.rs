//! Point-to-point messages, blocking and non-blocking.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::{cast_slice, cast_slice_mut};
use unisono_collectives::Rank;

use super::Communicator;
use crate::dtype::{Buffer, DType, Element};
use crate::error::Result;
use crate::request::{Driver, Request};
use crate::transport::{MessageOptions, Messages, Parts, Received, Sent};

/// The name of an exchange in errors.
const EXCHANGE: Option<&str> = Some("exchange");

impl Driver for Messages {
    fn drive_until(&self, waited: Duration, nap: Duration, is_done: &dyn Fn() -> bool) -> bool {
        Self::drive_until(self, waited, nap, is_done)
    }
}

impl Communicator {
    /// Sends values to rank `to`, which [receives](Communicator::receive) the same number of the same type (`MPI_Send`).
    ///
    /// A message may have a [tag](crate::CallBuilder::tag), by which its receiver selects it. Messages with the same tag arrive in the
    /// order sent. Messages and collectives are independent: a message may be received after a collective that follows it. Other ranks
    /// need not take part.
    ///
    /// Between ranks of a node, a message of at most 4 KiB is *eager*: the call copies it and returns, unless four messages
    /// before it are still unreceived. A longer one is a *rendezvous*: the receiver reads it in place or in pieces, and the call
    /// waits for it. Between nodes, the call returns when the system or MPI no longer needs the values. Two ranks that both send
    /// first and then receive may therefore deadlock until the timeout; use [`Communicator::exchange`] or
    /// [`Communicator::send_async`] instead.
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
        self.run_messages(T::DTYPE, None, Some((cast_slice(values), to)), None).map(drop)
    }

    /// Receives the earliest message from rank `from` with the [tag](crate::CallBuilder::tag) of the call, of exactly this number of
    /// values of this type (`MPI_Recv`).
    ///
    /// Messages with other tags that arrive before it are held for later receives. They may take 1 GiB; beyond it, the call fails
    /// with [`Error::Failed`](crate::Error::Failed), caused by an [`Error::Memory`](crate::Error::Memory). Long messages stay with
    /// their sender until this rank waits for a message from it.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     if comm.rank() == 0 {
    ///         comm.call().tag(1).send(&[1.0_f32; 3], 1)?;
    ///         comm.call().tag(2).send(&[2.0_f32; 5], 1)?;
    ///     } else {
    ///         let (mut first, mut second) = ([0.0_f32; 3], [0.0_f32; 5]);
    ///         comm.call().tag(2).receive(&mut second, 0)?;
    ///         comm.call().tag(1).receive(&mut first, 0)?;
    ///         assert_eq!((first, second), ([1.0; 3], [2.0; 5]));
    ///     }
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if the message has another count, type or label, or if the other rank waits for this
    /// one in a collective: it names the calls of both ranks. [`Error::Timeout`](crate::Error::Timeout), [`Error::Left`](crate::Error::Left) and
    /// [`Error::Aborted`](crate::Error::Aborted) if the other rank does not send it, [`Error::Failed`](crate::Error::Failed) if
    /// this rank cannot continue. `values` is then undefined.
    ///
    /// # Panics
    /// If `from` is not a rank of this world, or is this rank.
    pub fn receive<T: Element>(&mut self, values: &mut [T], from: Rank) -> Result<()> {
        self.check_other(from);
        self.run_messages(T::DTYPE, None, None, Some((cast_slice_mut(values), Some(from)))).map(drop)
    }

    /// Receives the first message with the [tag](crate::CallBuilder::tag) of the call that is available from any other rank, and
    /// returns that rank (`MPI_Recv` with `MPI_ANY_SOURCE`). If several are available, ranks are served round-robin.
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
    /// As [`Communicator::receive`]. A [timeout](crate::Error::Timeout) names one of the awaited ranks;
    /// [`Error::Left`](crate::Error::Left) is returned only once all of them have left.
    ///
    /// # Panics
    /// If there is no other rank.
    pub fn receive_any<T: Element>(&mut self, values: &mut [T]) -> Result<Rank> {
        self.check_any_other();
        let from = self.run_messages(T::DTYPE, None, None, Some((cast_slice_mut(values), None)))?;
        Ok(from.expect("a message was received"))
    }

    /// Sends values to rank `to` and receives others from rank `from` at the same time (`MPI_Sendrecv`). Ranks that exchange
    /// pairwise or around a ring do not deadlock, for any size. `to` and `from` may be the same rank, and the two messages may
    /// differ in length. The other ranks may also use [`send`](Communicator::send) and [`receive`](Communicator::receive).
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
        let (outgoing, incoming) = ((cast_slice(values), to), (cast_slice_mut(received), Some(from)));
        self.run_messages(T::DTYPE, EXCHANGE, Some(outgoing), Some(incoming)).map(drop)
    }

    /// Starts the non-blocking form of [`Communicator::send`] (`MPI_Isend`). It takes a vector, [registered
    /// memory](Communicator::alloc), or anything else that owns a slice; [`Request::wait`] returns it.
    ///
    /// Any number of messages may be in flight, sent and received in any order: none waits for another, nor for a collective, and a
    /// receive gets the earliest message with its tag. So ranks that all start to send before they receive do not deadlock. Of two
    /// receives in flight with the same source and tag, the one that was started first gets the earlier message.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let (rank, other) = (comm.rank(), 1 - comm.rank());
    ///     let sent = comm.call().tag(7).send_async(vec![rank as u64; 1 << 17], other)?;
    ///     let mut received = vec![0_u64; 1 << 17];
    ///     comm.call().tag(7).receive(&mut received, other)?;
    ///     assert!(received.iter().all(|&value| value == other as u64));
    ///     sent.wait().map(drop)
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
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
        self.start_messages(
            (T::DTYPE, None),
            values,
            move |values| Parts { outgoing: Some((cast_slice(values), to)), incoming: None },
            |values, _| values,
        )
    }

    /// Starts the non-blocking form of [`Communicator::receive`] (`MPI_Irecv`); [`Communicator::send_async`] describes messages in flight. [`Request::wait`] returns the buffer with the received
    /// values.
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
    pub fn receive_async<B: Buffer>(&mut self, values: B, from: Rank) -> Result<Request<B>> {
        self.check_other(from);
        self.start_messages((<B::Element>::DTYPE, None), values, incoming(Some(from)), |values, _| values)
    }

    /// Starts the non-blocking form of [`Communicator::receive_any`] (`MPI_Irecv` with `MPI_ANY_SOURCE`); [`Communicator::send_async`]
    /// describes messages in flight. The request returns the sender and the buffer with the received values.
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
    pub fn receive_any_async<B: Buffer>(&mut self, values: B) -> Result<Request<(Rank, B)>> {
        self.check_any_other();
        self.start_messages((<B::Element>::DTYPE, None), values, incoming(None), |values, from| {
            (from.expect("a message was received"), values)
        })
    }

    /// Starts the non-blocking form of [`Communicator::exchange`] (`MPI_Isendrecv`); [`Communicator::send_async`] describes messages
    /// in flight. The request returns both buffers: the values sent and those received.
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
        self.start_messages(
            (T::DTYPE, EXCHANGE),
            (values, received),
            move |(values, received)| Parts {
                outgoing: Some((cast_slice(values), to)),
                incoming: Some((cast_slice_mut(received), Some(from))),
            },
            |buffers, _| buffers,
        )
    }

    fn message_options(&self, dtype: DType, operation: Option<&'static str>) -> MessageOptions {
        let options = &self.per_call.options;
        let deadlines = options.deadlines(&self.engine_owner.limits().usual).into_owned();
        let of_engine = self.engine_owner.here().map(|engine| engine.deadlines(options).timeout);
        let first_timeout = of_engine.unwrap_or(deadlines.timeout);
        MessageOptions { dtype, tag: options.tag, label: options.label, deadlines, first_timeout, operation }
    }

    /// Sends and receives at most one message each, and returns the sender of the received one.
    fn run_messages(
        &mut self,
        dtype: DType,
        operation: Option<&'static str>,
        outgoing: Option<Sent<'_>>,
        incoming: Option<Received<'_>>,
    ) -> Result<Option<Rank>> {
        let options = self.message_options(dtype, operation);
        // While collectives are in flight, this rank may start one during the call.
        let is_alone = self.engine_owner.here().is_some();
        #[cfg(feature = "mpi")]
        let _driven = self.engine_owner.here().and_then(|engine| engine.transport.driven());
        let done = self.messages.run(&options, outgoing, incoming, is_alone);
        match self.engine_owner.here_mut() {
            Some(engine) if done.is_err() => engine.settle(done),
            _ => done,
        }
    }

    /// Starts to send and receive at most one message each. The request returns the result of `finish` for the buffer and the sender.
    fn start_messages<B: Send + 'static, R: Send + 'static>(
        &mut self,
        (dtype, operation): (DType, Option<&'static str>),
        buffer: B,
        parts: impl FnOnce(&mut B) -> Parts<'_>,
        finish: fn(B, Option<Rank>) -> R,
    ) -> Result<Request<R>> {
        self.check_in_flight()?;
        let options = self.message_options(dtype, operation);
        let began = Instant::now();
        let (request, outcome) = Request::driven_by(Arc::new(self.messages.clone()));
        let on_end = move |ended: Result<(B, Option<Rank>)>| {
            outcome.end(began, ended.map(|(buffer, from)| finish(buffer, from)));
        };
        self.messages.start(&options, buffer, parts, on_end)?;
        Ok(request)
    }

    fn check_any_other(&self) {
        assert!(self.ranks() > 1, "a world of one rank has no messages to receive");
    }

    fn check_other(&self, other: Rank) {
        let (rank, ranks) = (self.rank(), self.ranks());
        assert!(other < ranks, "rank {other} is not in a world of {ranks} ranks");
        assert_ne!(other, rank, "rank {rank} has no messages to itself");
    }
}

fn incoming<B: Buffer>(from: Option<Rank>) -> impl FnOnce(&mut B) -> Parts<'_> {
    move |values| Parts { outgoing: None, incoming: Some((cast_slice_mut(values), from)) }
}
