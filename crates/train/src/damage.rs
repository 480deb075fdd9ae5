//! Damaged samples that the ranks of a run have skipped.

use std::collections::BTreeSet;

use unisono::internals::gather;
use unisono::{Communicator, ReduceOp};
use unisono_data::Skipped;

use crate::TrainError;
use crate::compare::{MOST_TOLD, listed};

/// The damaged samples of a run that were reported. Ranks read different samples in each epoch, so several ranks may find the same damaged sample.
#[derive(Debug, Default)]
pub struct Damage {
    /// The indices of the named samples, which are the same on all ranks. The texts may differ.
    named: BTreeSet<usize>,
}

impl Damage {
    /// Returns the number of damaged samples that ranks skipped. On rank 0, also returns a notice that names the samples that were not named before.
    /// Called by all ranks.
    pub fn notice(
        &mut self,
        comm: &mut Communicator,
        own: &Skipped,
    ) -> Result<(u64, Option<String>), TrainError> {
        let mut sums = [own.count, own.problems.len() as u64];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let [count, found] = sums;
        if found == 0 {
            return Ok((count, None));
        }
        let own: Vec<_> = own.problems.iter().take(MOST_TOLD).cloned().collect();
        let problems = gather(comm, &own)?.concat();
        Ok((count, if comm.rank() == 0 { self.name(found as usize, problems) } else { None }))
    }

    fn name(&mut self, found: usize, problems: Vec<(usize, String)>) -> Option<String> {
        let others = found - problems.len();
        let new = problems.into_iter().filter(|(sample, _)| self.named.insert(*sample));
        let mut new: Vec<_> = new.map(|(_, problem)| problem.replace('\n', " ")).collect();
        let count = new.len() + others;
        if count == 0 {
            return None;
        }
        new.sort_unstable();
        let plural = if count == 1 { "" } else { "s" };
        Some(format!("{count} damaged sample{plural} skipped: {}", listed(new, count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_names_each_skipped_sample_once() {
        let told = unisono::threads(3, |mut comm| {
            // One damaged sample is the same on ranks 1 and 2.
            let rank = comm.rank();
            let problems = (0..4 * rank).map(|at| at + rank * 3);
            let problems = problems.map(|sample| (sample, format!("`{sample}.png`: bad on rank {rank}")));
            let own = Skipped { count: 20, problems: problems.collect() };
            let mut damage = Damage::default();
            [own.clone(), own, Skipped::default()].map(|own| damage.notice(&mut comm, &own).unwrap())
        });
        let notice = told[0][0].1.as_ref().expect("samples were skipped");
        assert!(
            notice.starts_with("11 damaged samples skipped: `10.png`: bad on rank 2; `11.png`: bad"),
            "{notice}"
        );
        assert!(notice.ends_with("; and 3 more"), "{notice}");
        for (rank, told) in told.iter().enumerate() {
            let said = told.each_ref().map(|(count, notice)| (*count, notice.is_some()));
            assert_eq!(said, [(60, rank == 0), (60, false), (0, false)], "rank {rank}");
        }
    }
}
