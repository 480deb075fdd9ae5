//! Options of a single call: algorithm, label, deadline, tag, element size and the parts of ranks.

use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use unisono_collectives::Chunks;
use unisono_collectives::partition::Partition;

use super::Communicator;
use crate::collective::Options;
use crate::error::Result;
use crate::select::Choice;

#[derive(Debug, Clone, Default)]
pub(super) struct PerCall {
    choice: Option<Choice>,
    element_bytes: Option<NonZero<u16>>,
    /// The label that the program has given.
    label: Option<Arc<str>>,
    pub(super) options: Options,
}

impl PerCall {
    /// Returns the choice for these calls, or else that of the communicator.
    #[inline]
    pub(super) fn choice_or<'a>(&'a self, usual: &'a Choice) -> &'a Choice {
        self.choice.as_ref().unwrap_or(usual)
    }

    /// Returns the number of values of the buffer in an element.
    #[inline]
    pub(super) fn width(&self) -> u16 {
        self.element_bytes.map_or(1, NonZero::get)
    }
}

/// A communicator with options for single calls: an algorithm, a label, a deadline or the parts of ranks. [`Communicator::call`]
/// creates it.
///
/// It borrows a [`Communicator`] and has all its methods: collectives and messages, blocking and non-blocking, in host memory and
/// on GPUs. Unset options are those of the communicator. Once it is dropped, which is at the end of the statement unless it is
/// bound to a variable, the communicator's own options apply again. A call in flight keeps the options it was started with.
///
/// Bound to a variable, it serves several calls, and a `&mut` to it coerces to `&mut Communicator`:
///
/// ```
/// use std::time::Duration;
/// use unisono::{Communicator, ReduceOp};
///
/// fn mean(comm: &mut Communicator, loss: &mut [f32]) -> unisono::Result<()> {
///     comm.all_reduce(loss, ReduceOp::Mean).map(drop)
/// }
///
/// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
///     let mut validation = comm.call().label("validation").timeout(Duration::from_secs(5));
///     for batch in 0..3 {
///         mean(&mut validation, &mut [batch as f32])?;
///     }
///     drop(validation);
///     mean(&mut comm, &mut [1.0])
/// });
/// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until a call is made"]
pub struct CallBuilder<'comm> {
    comm: &'comm mut Communicator,
    /// The options before this one, since builders nest.
    before: PerCall,
}

impl Communicator {
    /// Sets an algorithm, a label or a deadline for a single call.
    ///
    /// ```
    /// use std::time::Duration;
    /// use unisono::{Algorithm, ReduceOp};
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<()> {
    ///     let mut loss = [comm.rank() as f32];
    ///     let ran = comm
    ///         .call()
    ///         .algorithm(Algorithm::Ring)
    ///         .label("loss")
    ///         .timeout(Duration::from_secs(5))
    ///         .all_reduce(&mut loss, ReduceOp::Mean)?;
    ///     assert_eq!((loss, ran.method.name()), ([0.5], "ring"));
    ///     let request = comm.call().label("gradients").all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum)?;
    ///     assert_eq!(request.wait()?[0], 2.0);
    ///     Ok(())
    /// });
    /// assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    /// ```
    pub fn call(&mut self) -> CallBuilder<'_> {
        CallBuilder { before: self.per_call.clone(), comm: self }
    }

    #[inline]
    pub(super) fn check_choice_of_call(&self) -> Result<()> {
        self.per_call.choice.as_ref().map_or(Ok(()), |choice| self.check_choice(choice))
    }

    pub(super) fn choice_of_call(&self) -> Result<&Choice> {
        self.check_choice_of_call()?;
        Ok(self.per_call.choice_or(&self.choice))
    }
}

impl CallBuilder<'_> {
    /// Sets the algorithm or any other [`Choice`], as [`Communicator::set_choice`] does for all calls. All ranks set the same.
    /// Barriers and messages have a fixed algorithm.
    ///
    /// The call fails with [`Error::Unsupported`](crate::Error::Unsupported) if the choice is not available here.
    pub fn algorithm(self, choice: impl Into<Choice>) -> Self {
        self.comm.per_call.choice = Some(choice.into());
        self
    }

    /// Names the call in errors, in warnings about waits and in flight recorders. All ranks use the same label; otherwise they
    /// get an [`Error::Mismatch`](crate::Error::Mismatch) with both. A label of more than 52 bytes is shortened to its first 41
    /// and a number.
    pub fn label(self, label: &str) -> Self {
        self.comm.per_call.label = Some(label.into());
        self.intern_label()
    }

    /// Names a call that the library makes itself. The parts and elements of the program's calls do not apply to its buffer.
    pub(super) fn of_library(self, label: &str) -> Self {
        self.comm.per_call.element_bytes = None;
        self.comm.per_call.options.parts = None;
        self.label(label)
    }

    /// Sets the number of elements of each rank's part, which may be 0: an all-gather is then `MPI_Allgatherv`, a reduce-scatter
    /// `MPI_Reduce_scatter`, a gather `MPI_Gatherv`, and a scatter `MPI_Scatterv`, all with contiguous parts in the order of ranks. The
    /// buffer has as many elements as the parts together. [`Communicator::own_part`] is the range of this rank's. All ranks set the
    /// same; otherwise they get an [`Error::Mismatch`](crate::Error::Mismatch) with both.
    ///
    /// ```
    /// let ended = unisono::threads(3, |mut comm| -> unisono::Result<[u8; 8]> {
    ///     let mut uneven = comm.call().counts(&[3, 0, 5]);
    ///     let mut buffer = [0; 8];
    ///     let own = uneven.own_part(8);
    ///     buffer[own].fill(1 + uneven.rank() as u8);
    ///     uneven.all_gather(&mut buffer)?;
    ///     Ok(buffer)
    /// });
    /// assert!(ended.into_iter().all(|buffer| buffer.unwrap() == [1, 1, 1, 3, 3, 3, 3, 3]));
    /// ```
    ///
    /// [`Communicator::all_to_all_v`] has counts for every pair of ranks. Messages, barriers, [`Communicator::lateness`] and
    /// [`Communicator::on_rank0`] have no parts, and ignore it. Any other call panics.
    ///
    /// # Panics
    /// If there is not one count for each rank, or if the sum overflows `usize`. The call panics if its buffer does not have as many
    /// elements.
    pub fn counts(self, counts: &[usize]) -> Self {
        let ranks = self.comm.ranks();
        assert_eq!(counts.len(), ranks, "the number of counts in a world of {ranks} ranks");
        self.comm.per_call.options.parts = Some(Partition::given(counts));
        self.intern_label()
    }

    /// Sets the labels that ranks compare: the one that the program has given, and the one with the sizes of the parts.
    fn intern_label(self) -> Self {
        let Communicator { per_call: PerCall { label, options, .. }, status, .. } = &mut *self.comm;
        let label = label.as_deref();
        options.label = label.map_or(0, |label| status.intern(label));
        options.label_of_parts = options.parts.as_ref().map_or(0, |parts| {
            let before = label.map_or(String::new(), |label| format!("{label}, "));
            let size = |part| parts.elements(Chunks::one(part)).len().to_string();
            let sizes: Vec<_> = (0..parts.chunk_count()).map(size).collect();
            status.intern(&format!("{before}parts of {}", sizes.join(", ")))
        });
        self
    }

    /// Makes every `size` bytes of a buffer of `u8` one element, for types that the library does not have: the parts of ranks
    /// ([`Communicator::own_part`]) and the blocks of an all-to-all consist of whole elements. All ranks set the same. Messages
    /// have no parts, and ignore it.
    ///
    /// ```
    /// use std::num::NonZero;
    ///
    /// let ended = unisono::threads(2, |mut comm| -> unisono::Result<[u8; 6]> {
    ///     // Three elements of two bytes: two belong to rank 0, and one to rank 1.
    ///     let mut bytes = [0; 6];
    ///     let own = comm.own_part(3);
    ///     bytes[2 * own.start..2 * own.end].fill(1 + comm.rank() as u8);
    ///     comm.call().element_bytes(NonZero::new(2).unwrap()).all_gather(&mut bytes)?;
    ///     Ok(bytes)
    /// });
    /// assert!(ended.into_iter().all(|bytes| bytes.unwrap() == [1, 1, 1, 1, 2, 2]));
    /// ```
    ///
    /// The call panics if it reduces other than by [`ReduceOp::custom_bytes`](crate::ReduceOp::custom_bytes), if its buffer is not of `u8`, or if that does not consist of whole elements.
    pub fn element_bytes(self, size: NonZero<u16>) -> Self {
        self.comm.per_call.element_bytes = Some(size);
        self
    }

    /// Sets the tag of a point-to-point message, 0 unless it is set. A receive gets the earliest message of its source with the
    /// same tag, even if other messages precede it: [`Communicator::receive`] has an example. Collectives ignore it.
    pub fn tag(self, tag: u32) -> Self {
        self.comm.per_call.options.tag = tag;
        self
    }

    /// Sets how long this rank waits for another in the call; [`Communicator::set_timeout`] does so for all calls.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.comm.per_call.options.timeout = Some(timeout);
        self
    }
}

impl Deref for CallBuilder<'_> {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        self.comm
    }
}

impl DerefMut for CallBuilder<'_> {
    fn deref_mut(&mut self) -> &mut Communicator {
        self.comm
    }
}

impl Drop for CallBuilder<'_> {
    fn drop(&mut self) {
        self.comm.per_call = std::mem::take(&mut self.before);
    }
}
