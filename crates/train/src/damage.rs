//! Damaged samples that the ranks of a run have skipped.

use std::collections::BTreeSet;

use unisono::{Communicator, Error, ReduceOp};
use unisono_data::Skipped;

use crate::trace::gather_bytes;

/// The number of samples that a notice names; further ones are counted.
const MOST_NAMED: usize = 8;
/// Most names of a rank fit.
const BLOCK_BYTES: usize = 4096;

/// The damaged samples of a run that were reported. Ranks see others in each epoch, so several may find the
/// same.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    named: BTreeSet<String>,
}

impl Damage {
    /// Returns the number of damaged samples that ranks skipped, and on rank 0 a notice that names those that were not named
    /// before. Called by all ranks.
    pub(crate) fn notice(
        &mut self,
        comm: &mut Communicator,
        own: &Skipped,
    ) -> Result<(u64, Option<String>), Error> {
        let mut sums = [own.count, own.problems.len() as u64];
        comm.all_reduce(&mut sums, ReduceOp::Sum)?;
        let [count, found] = sums;
        if found == 0 {
            return Ok((count, None));
        }
        let lines = own.problems.iter().take(MOST_NAMED).map(|problem| problem.replace('\n', " ") + "\n");
        let gathered = gather_bytes(comm, lines.collect::<String>().as_bytes(), BLOCK_BYTES)?;
        Ok((count, gathered.and_then(|texts| self.name(found as usize, &texts))))
    }

    fn name(&mut self, found: usize, texts: &[Vec<u8>]) -> Option<String> {
        let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
        let lines: Vec<_> = texts.iter().flat_map(|text| text.lines()).collect();
        let unnamed = found - lines.len();
        let new: BTreeSet<_> = lines.into_iter().filter(|line| !self.named.contains(*line)).collect();
        let count = new.len() + unnamed;
        if count == 0 {
            return None;
        }
        let names: Vec<_> = new.iter().take(MOST_NAMED).copied().collect();
        let more = count - names.len();
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let said = format!(
            "{count} damaged sample{} skipped: {}{more}",
            if count == 1 { "" } else { "s" },
            names.join("; ")
        );
        self.named.extend(new.into_iter().map(str::to_owned));
        Some(said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_names_once_what_others_have_skipped() {
        let told = unisono::threads(3, |mut comm| {
            // Ranks 1 and 2 have one in common.
            let rank = comm.rank();
            let problems = (0..4 * rank).map(|sample| format!("`{}.png`: bad", rank * 3 + sample));
            let own = Skipped { count: 20, problems: problems.collect() };
            let mut damage = Damage::default();
            [own.clone(), own, Skipped::default()].map(|own| damage.notice(&mut comm, &own).unwrap())
        });
        let notice = told[0][0].1.as_ref().expect("samples were skipped");
        assert!(notice.starts_with("11 damaged samples skipped: `10.png`: bad; `11.png`: bad; "), "{notice}");
        assert!(notice.ends_with("; and 3 more"), "{notice}");
        for (rank, told) in told.iter().enumerate() {
            let said = told.each_ref().map(|(count, notice)| (*count, notice.is_some()));
            assert_eq!(said, [(60, rank == 0), (60, false), (0, false)], "rank {rank}");
        }
    }
}
