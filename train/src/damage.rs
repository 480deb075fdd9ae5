//! Damaged samples that the ranks of a run have skipped.

use unisono::{Communicator, Error, ReduceOp};
use unisono_data::Skipped;

use crate::trace::gather_bytes;

/// How many samples a notice names; further ones are counted.
const MOST_NAMED: usize = 8;
/// Most names of a rank fit.
const BLOCK_BYTES: usize = 4096;

/// How often ranks skipped a damaged sample, and on rank 0 a notice that names those that were not skipped before. Called by all ranks.
pub(crate) fn of_all(comm: &mut Communicator, own: &Skipped) -> Result<(u64, Option<String>), Error> {
    let mut sums = [own.count, own.problems.len() as u64];
    comm.all_reduce(&mut sums, ReduceOp::Sum)?;
    let [count, named] = sums;
    if named == 0 {
        return Ok((count, None));
    }
    let lines: String =
        own.problems.iter().take(MOST_NAMED).map(|problem| problem.replace('\n', " ") + "\n").collect();
    let gathered = gather_bytes(comm, lines.as_bytes(), BLOCK_BYTES)?;
    Ok((count, gathered.map(|texts| notice(named as usize, &texts))))
}

fn notice(count: usize, texts: &[Vec<u8>]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| String::from_utf8_lossy(text)).collect();
    let mut names: Vec<_> = texts.iter().flat_map(|text| text.lines()).collect();
    names.sort_unstable();
    names.truncate(MOST_NAMED);
    let more = count - names.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} damaged sample{plural} skipped: {}{more}", names.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_0_names_what_others_have_skipped() {
        let told = unisono::threads(3, |mut comm| {
            let problems = (0..5 * comm.rank())
                .map(|sample| format!("`{}.png`: bad", comm.rank() * 100 + sample))
                .collect();
            let own = Skipped { count: 20, problems };
            [of_all(&mut comm, &own).unwrap(), of_all(&mut comm, &Skipped::default()).unwrap()]
        });
        let notice = told[0][0].1.as_ref().expect("samples were skipped");
        assert!(
            notice.starts_with("15 damaged samples skipped: `100.png`: bad; `101.png`: bad; "),
            "{notice}"
        );
        assert!(notice.ends_with("`202.png`: bad; and 7 more"), "{notice}");
        for (rank, [first, second]) in told.iter().enumerate() {
            assert_eq!((first.0, first.1.is_some(), second), (60, rank == 0, &(0, None)));
        }
    }
}
