//! The passes of a step.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Mirror;
use crate::buckets::Pass;
use crate::error::TrainError;
use crate::replica::Replica;
use crate::share::Share;
use unisono::Communicator;

impl<R: Replica> Mirror<R> {
    /// Runs this rank's micro-batches. Returns the parameters newly found to have no gradient, and the time that passes waited.
    pub(super) fn passes(
        &mut self,
        comm: &mut Communicator,
        share: Share<'_, R::Batch>,
    ) -> Result<(Vec<String>, Duration), TrainError> {
        let Share { passes, is_out_of_data, asks_to_stop, asks_to_save } = share;
        // In a tree, all ranks have the same number of passes, and the number of a pass does not depend on the rank that makes it.
        let first = comm.rank() as u64 * if self.is_tree { passes.len() as u64 } else { 1 << 32 };
        let of = self.replica.begin_step(first, passes.len())?.max(1);
        let has_samples = |number: usize| matches!(passes.get(number), Some(Some(_)));
        let of = self.backend.passes(comm, of, &has_samples)?;
        let (mut never_put, mut waited) = (None::<BTreeSet<usize>>, Duration::ZERO);
        for number in 0..of {
            let pass = Pass { number, of, is_out_of_data, asks_to_stop, asks_to_save, ..Pass::ONLY };
            let Some(Some(batch)) = passes.get(number) else {
                self.settle()?;
                self.backend.pass(comm, pass, &mut |_| self.replica.pass_without_samples())?;
                continue;
            };
            let (began, mut ended) = (Instant::now(), None);
            let without = self.backend.pass(comm, pass, &mut |gradients| {
                self.replica.pass(batch, gradients)?;
                ended = Some(Instant::now());
                Ok(())
            })?;
            if let (Some(weighed), Some(ended)) = (self.backend.ledger().weighed, ended) {
                self.span("forward", began, weighed);
                self.span("backward", weighed, ended);
            }
            waited += self.replica.waited();
            let without = without.into_iter().collect();
            never_put = Some(match never_put {
                Some(earlier) => &earlier & &without,
                None => without,
            });
        }
        let new: Vec<_> = never_put.unwrap_or_default().difference(&self.never_put).copied().collect();
        self.never_put.extend(&new);
        let name = |index: usize| self.replica.parameters()[index].name.clone();
        Ok((new.into_iter().map(name).collect(), waited))
    }
}
