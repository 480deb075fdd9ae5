//! What is said for one call, and not for all to come: the algorithm, a label, a deadline.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::Communicator;
use crate::collective::Options;
use crate::error::Result;
use crate::select::Choice;

/// What calls have beside what they are.
#[derive(Debug, Clone, Default)]
pub(super) struct PerCall {
    choice: Option<Choice>,
    pub(super) options: Options,
}

impl PerCall {
    /// The choice for these calls, or that for all.
    #[inline]
    pub(super) fn choice_or<'a>(&'a self, usual: &'a Choice) -> &'a Choice {
        self.choice.as_ref().unwrap_or(usual)
    }
}

/// A communicator for one call, by an algorithm, with a label and with a deadline of its own: what [`Communicator::call`] gives.
///
/// It has every method of a [`Communicator`], which it borrows: collectives and messages, blocking and in flight, in the host's
/// memory and on GPUs. What is not said for the call is as for all calls. Nothing of it stays behind: once it is dropped, which is
/// at the end of the statement unless it has a name, calls are again as they were before. A collective in flight keeps what it was
/// begun with.
///
/// With a name it serves several calls; and whoever takes a `&mut Communicator` may be given `&mut` one:
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
    /// What calls had before: one may be begun from another.
    before: PerCall,
}

impl Communicator {
    /// A call with an algorithm, a label or a deadline of its own, which no other call has.
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

    /// # Errors
    /// As [`Communicator::set_choice`], if an algorithm was chosen for this call.
    #[inline]
    pub(super) fn check_choice_of_call(&self) -> Result<()> {
        self.per_call.choice.as_ref().map_or(Ok(()), |choice| self.check_choice(choice))
    }

    /// By what a call is carried out.
    ///
    /// # Errors
    /// As [`Communicator::set_choice`], if an algorithm was chosen for this call.
    pub(super) fn choice_of_call(&self) -> Result<&Choice> {
        self.check_choice_of_call()?;
        Ok(self.per_call.choice_or(&self.choice))
    }
}

impl CallBuilder<'_> {
    /// By this algorithm, or whatever else may be chosen, as [`Communicator::set_choice`] says it for all calls. All ranks choose
    /// the same. Barriers and messages have no algorithm to choose.
    ///
    /// What cannot be had here is refused by the call, with [`Error::Unsupported`](crate::Error::Unsupported).
    pub fn algorithm(self, choice: impl Into<Choice>) -> Self {
        self.comm.per_call.choice = Some(choice.into());
        self
    }

    /// Names it: in errors, in what is said of ranks that wait, and in flight recorders. All ranks give the call the same name, or
    /// get an [`Error::Mismatch`](crate::Error::Mismatch) that says both. Of one of more than 52 bytes, the first 41 and a number
    /// are kept.
    pub fn label(self, label: &str) -> Self {
        self.comm.per_call.options.label = self.comm.status.know(label);
        self
    }

    /// How long this rank waits in it for another before it gives up; [`Communicator::set_timeout`] says it for all calls.
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
