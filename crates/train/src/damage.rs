//! Damaged samples that the ranks of a run have skipped.

use std::collections::BTreeSet;

use unisono::{Communicator, ReduceOp};
use unisono_data::Skipped;

use crate::TrainError;
use crate::compare::{MOST_TOLD, gather, listed};

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
        let lines = own.problems.iter().take(MOST_TOLD);
        let lines = lines.map(|(sample, problem)| format!("{sample} {}\n", problem.replace('\n', " ")));
        let lines = gather_text(comm, &lines.collect::<String>())?;
        Ok((count, if comm.rank() == 0 { self.name(found as usize, &lines) } else { None }))
    }

    fn name(&mut self, found: usize, lines: &str) -> Option<String> {
        let problems = lines.lines().filter_map(|line| line.split_once(' '));
        let new = problems.filter(|(sample, _)| sample.parse().is_ok_and(|sample| self.named.insert(sample)));
        let mut new: Vec<_> = new.map(|(_, problem)| problem.to_owned()).collect();
        let count = new.len() + found - lines.lines().count();
        if count == 0 {
            return None;
        }
        new.sort_unstable();
        let plural = if count == 1 { "" } else { "s" };
        Some(format!("{count} damaged sample{plural} skipped: {}", listed(new, count)))
    }
}

/// Concatenates the texts of all ranks. Called by all ranks.
fn gather_text(comm: &mut Communicator, own: &str) -> Result<String, TrainError> {
    let lengths: Vec<_> = gather(comm, own.len() as u64)?.into_iter().map(|length| length as usize).collect();
    let before: usize = lengths[..comm.rank()].iter().sum();
    let mut bytes = vec![0; lengths.iter().sum()];
    bytes[before..][..own.len()].copy_from_slice(own.as_bytes());
    comm.call().counts(&lengths).all_gather(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
