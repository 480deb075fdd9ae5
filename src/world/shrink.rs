//! [`Communicator::shrink`]: a world of the survivors.

use super::{read_cards, watch_over};
use crate::communicator::{Communicator, Survivors};
#[cfg(doc)]
use crate::config::OnFailure;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::transport::Bootstrap as _;
use crate::watchdog::Card;

impl Communicator {
    /// Returns a communicator of the ranks that are left, after a [fatal](Error::is_fatal) error. All of them call it. They keep their
    /// order and get new numbers ([`Communicator::former_ranks`]). Further ranks may fail meanwhile.
    ///
    /// A rank is left out if its process has ended, or if it has dropped its communicator. Nobody leaves out a rank that is alive:
    /// the others wait for it as long as [for any call](Communicator::set_timeout). This communicator ends on all ranks when the first
    /// of them calls `shrink`, whether or not something has failed: ranks in a call then get [`Error::Aborted`], and can call it too.
    ///
    /// The new communicator inherits the algorithm choice, timeouts and constants, and is independent of the old one and its world.
    /// Registered memory keeps its values, and collectives treat it as any other memory: [allocate](Communicator::alloc) it again.
    ///
    /// ```
    /// use unisono::{Communicator, ReduceOp, Result};
    ///
    /// /// Sums over the ranks that are left, whoever fails.
    /// fn steps(mut comm: Communicator) -> Result<f32> {
    ///     let mut step = 0;
    ///     loop {
    ///         if comm.ranks() == 4 && comm.rank() == 1 && step == 3 {
    ///             panic!("on purpose");
    ///         }
    ///         let mut sum = [1.0_f32];
    ///         match comm.all_reduce(&mut sum, ReduceOp::Sum) {
    ///             Ok(_) if step == 5 => return Ok(sum[0]),
    ///             Ok(_) => step += 1,
    ///             // The ranks may be in different steps: they continue at the least.
    ///             Err(error) if error.is_fatal() => {
    ///                 comm = comm.shrink()?;
    ///                 let mut least = [step as u64];
    ///                 comm.all_reduce(&mut least, ReduceOp::Min)?;
    ///                 step = least[0];
    ///             }
    ///             Err(error) => return Err(error),
    ///         }
    ///     }
    /// }
    ///
    /// let ended = unisono::threads(4, |comm| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| steps(comm))));
    /// assert!(ended[1].is_err());
    /// assert!([0, 2, 3].iter().all(|&rank| matches!(ended[rank], Ok(Ok(3.0)))));
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`], before anything happens, if ranks do not all share memory, are connected by MPI, or end with the job
    /// ([`OnFailure::EndJob`]). [`Error::Missing`] if a rank that is alive does not call `shrink`; it names the rank, and says whether
    /// its process is stopped. [`Error::Memory`] and [`Error::Launch`] if this rank cannot set up the new world; the others then do so
    /// without it.
    pub fn shrink(mut self) -> Result<Self> {
        let mut survivors = self.survivors()?;
        loop {
            survivors.join()?;
            match self.shrunk_to(&mut survivors) {
                // Another rank has failed meanwhile.
                Err(_) if survivors.lack_one() => {}
                ended => return ended,
            }
        }
    }

    fn shrunk_to(&mut self, survivors: &mut Survivors) -> Result<Self> {
        let (mut comm, controls) = self.among_survivors(survivors)?;
        let card = Card::of_this_process(comm.status().members()[0]);
        let cards = survivors.all_gather(bytemuck::cast_slice(&card.to_words()))?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let words = |card: &Vec<u8>| card.chunks_exact(8).map(word).collect();
        let cards = read_cards(&cards.iter().map(words).collect::<Vec<_>>())?;
        let config = comm.config().clone();
        watch_over(&mut comm, (cards, None, controls), &config)?;
        // Either all members have come here, or none returns this communicator.
        survivors.all_gather(&[])?;
        Ok(comm)
    }
}
