//! An all-to-all with a count for every pair of ranks.

use std::ops::{Deref, DerefMut};

use bytemuck::{cast_slice, cast_slice_mut};
use unisono_collectives::partition::Partition;
use unisono_collectives::{Chunks, Operation};

use super::Communicator;
use crate::call::{Call, Ran};
use crate::dtype::Element;
use crate::error::Result;
use crate::request::Request;

impl Communicator {
    /// Sends to every rank a part of one array, and receives a part of another array from each: `MPI_Alltoallv`, with contiguous parts
    /// in the order of ranks.
    ///
    /// `sent_counts[j]` is the number of elements for rank `j`, and `received_counts[i]` the number from rank `i`; both may be 0.
    /// Rank `j` must expect from this rank as many elements as this rank sends to it. The part that a rank sends to itself is
    /// copied.
    ///
    /// ```
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<Vec<u32>> {
    ///     // Rank 0 keeps one token and sends two; rank 1 sends three and keeps none.
    ///     let (tokens, sent, received) = match comm.rank() {
    ///         0 => ([1, 2, 3], [1, 2], [1, 3]),
    ///         _ => ([4, 5, 6], [3, 0], [2, 0]),
    ///     };
    ///     let mut routed = vec![0; received.iter().sum()];
    ///     comm.all_to_all_v(&tokens, &sent, &mut routed, &received)?;
    ///     Ok(routed)
    /// });
    /// let routed: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    /// assert_eq!(routed, [vec![1, 4, 5, 6], vec![2, 3]]);
    /// ```
    ///
    /// # Errors
    /// [`Error::Mismatch`](crate::Error::Mismatch) if a rank sends another number of elements than expected. Otherwise as
    /// [`Communicator::all_reduce`].
    ///
    /// # Panics
    /// If there is not one count for each rank, if the counts do not add up to the lengths of the arrays, or if this rank expects
    /// another number of elements from itself than it sends.
    pub fn all_to_all_v<T: Element>(
        &mut self,
        sent: &[T],
        sent_counts: &[usize],
        received: &mut [T],
        received_counts: &[usize],
    ) -> Result<Ran> {
        let (call, parts) = self.of_pairs::<T>((sent.len(), sent_counts), (received.len(), received_counts));
        self.check_choice_of_call()?;
        let Self { engine_owner, choice, per_call, .. } = self;
        let choice = per_call.choice_or(choice).on_host(call.operation);
        let (sent, received) = ((cast_slice(sent), &parts.0), (cast_slice_mut(received), &parts.1));
        engine_owner.engine().all_to_all_v(choice, &per_call.options, &call, sent, received)
    }

    /// Starts the non-blocking form of [`Communicator::all_to_all_v`]; it takes both arrays as [`Communicator::all_reduce_async`] takes
    /// one, and the request returns them.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce_async`].
    ///
    /// # Panics
    /// As [`Communicator::all_to_all_v`].
    pub fn all_to_all_v_async<T: Element, B, C>(
        &mut self,
        sent: B,
        sent_counts: &[usize],
        received: C,
        received_counts: &[usize],
    ) -> Result<Request<(B, C)>>
    where
        B: Deref<Target = [T]> + Send + 'static,
        C: DerefMut<Target = [T]> + Send + 'static,
    {
        let (call, parts) = self.of_pairs::<T>((sent.len(), sent_counts), (received.len(), received_counts));
        let choice = self.choice_of_call()?.on_host(call.operation).clone();
        self.work_async((sent, received), move |engine, options, (sent, received)| {
            let (sent, received) = ((cast_slice(sent), &parts.0), (cast_slice_mut(received), &parts.1));
            engine.all_to_all_v(&choice, options, &call, sent, received).map(drop)
        })
    }

    /// Returns the call, and the parts of two arrays with these numbers of values and counts.
    fn of_pairs<T: Element>(
        &self,
        sent: (usize, &[usize]),
        received: (usize, &[usize]),
    ) -> (Call, (Partition, Partition)) {
        let call = self.checked::<T>(Operation::AllToAll, None, 0);
        let ranks = self.ranks();
        let [sent, received] = [(sent, "sent"), (received, "received")].map(|((values, counts), name)| {
            assert_eq!(counts.len(), ranks, "the number of {name} counts in a world of {ranks} ranks");
            let parts = Partition::given(counts);
            let sum = parts.start(ranks).checked_mul(usize::from(call.width));
            let sum = sum.unwrap_or_else(|| panic!("the {name} counts overflow `usize`"));
            assert_eq!(values, sum, "the {name} array has {values} elements, and its parts have {sum}");
            parts
        });
        let [to, from] = [&sent, &received].map(|parts| parts.elements(Chunks::one(self.rank())).len());
        assert_eq!(to, from, "rank {} sends {to} elements to itself, and expects {from}", self.rank());
        (call, (sent, received))
    }
}
