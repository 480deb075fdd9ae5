//! [`Communicator::shrink`]: a world of the survivors.

use super::meet;
use crate::communicator::Communicator;
#[cfg(doc)]
use crate::config::OnFailure;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;

impl Communicator {
    /// Returns a communicator of the ranks that are left, after a [fatal](Error::is_fatal) error. All of them call it. They keep their
    /// order and get new numbers ([`Communicator::former_ranks`]). Further ranks may fail meanwhile.
    ///
    /// A rank is left out if its process has ended, or if it has dropped its communicator. A rank that is alive is never left out:
    /// the others wait for it for [the timeout of a call](Communicator::set_timeout), or longer while a rank is in a
    /// [quiet section](Communicator::quiet). This communicator ends on all ranks when the first of them calls `shrink`, even without a
    /// failure, and so do its groups. Ranks in a call then get [`Error::Aborted`], and can call it too.
    ///
    /// The new communicator inherits the algorithm choice, timeouts and constants, and is independent of the old one and its world.
    /// Registered memory keeps its values, and collectives treat it as any other memory: [allocate](Communicator::alloc) it again.
    ///
    /// After a failure, some ranks may have completed the last call and others not. So all continue from the state of one of them:
    ///
    /// ```
    /// use unisono::{Communicator, ReduceOp, Result};
    ///
    /// const STEPS: u64 = 100;
    ///
    /// /// Trains on the ranks that are left, whichever fail.
    /// fn train(mut comm: Communicator) -> Result<Vec<f32>> {
    ///     let (mut step, mut weights) = (0, vec![0.0_f32; 1000]);
    ///     while step < STEPS {
    ///         # if comm.ranks() == 4 && comm.rank() == 1 && step == 30 { return Ok(weights) }
    ///         let mut gradients: Vec<f32> = weights.iter().map(|weight| weight - 3.0).collect();
    ///         match comm.all_reduce(&mut gradients, ReduceOp::Mean) {
    ///             Ok(_) => {
    ///                 weights.iter_mut().zip(&gradients).for_each(|(weight, gradient)| *weight -= 0.1 * gradient);
    ///                 step += 1;
    ///             }
    ///             Err(error) if error.is_fatal() => {
    ///                 comm = comm.shrink()?;
    ///                 let (mut first_step, mut first_weights) = ([step], weights.clone());
    ///                 // If another rank fails here, so does the next all-reduce, and this rank still has its own state.
    ///                 let copied = comm
    ///                     .broadcast(&mut first_step, 0)
    ///                     .and_then(|_| comm.broadcast(&mut first_weights, 0));
    ///                 if copied.is_ok() {
    ///                     (step, weights) = (first_step[0], first_weights);
    ///                 }
    ///             }
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    ///     Ok(weights)
    /// }
    ///
    /// let ended = unisono::threads(4, train);
    /// # let ended = ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1).map(|(_, ended)| ended);
    /// assert!(ended.into_iter().all(|weights| (weights.unwrap()[0] - 3.0).abs() < 0.001));
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`], before anything happens, if ranks are connected by MPI, or end with the job ([`OnFailure::EndJob`]).
    /// [`Error::Missing`] if a rank that is alive does not call `shrink`; it names the rank, and reports whether its process is
    /// stopped. [`Error::Partitioned`] if this rank is cut off from more ranks that may be alive than it reaches. Those continue
    /// without it. [`Error::Failed`] if fewer are left than [required](Communicator::set_minimum_ranks). [`Error::Memory`] and
    /// [`Error::Launch`] if this rank cannot set up the new world; the others then do so without it.
    pub fn shrink(mut self) -> Result<Self> {
        let mut survivors = self.survivors()?;
        let mut latest = None;
        while survivors.join()? {
            let mut comm = match self.among_survivors(&mut survivors) {
                // Another rank has failed meanwhile.
                Err(_) if survivors.has_lost_member() => continue,
                derived => derived?,
            };
            let met = meet(&mut comm, &mut survivors).and_then(|()| survivors.finish());
            if !survivors.has_lost_member() {
                return met.map(|()| comm);
            }
            // Other ranks may have completed this attempt.
            latest = Some(comm);
        }
        Ok(latest.expect("this rank has prepared every attempt that another rank has completed"))
    }
}
