//! The memory that ranks have in use.

use std::fs;

use unisono::{Communicator, ReduceOp};

use crate::error::TrainError;

/// Returns the bytes of memory that a rank has in use now, the mean over all ranks: memory that several processes share counts in equal
/// parts (Linux's proportional set size), and that of a process whose threads are ranks is divided by these. `None` where the system
/// does not tell. Called by all ranks.
pub(crate) fn bytes_per_rank(comm: &mut Communicator) -> Result<Option<u64>, TrainError> {
    let own = fs::read_to_string("/proc/self/smaps_rollup").ok().and_then(|text| proportional(&text));
    let ranks_here = if comm.transport() == "threads" { comm.ranks() } else { 1 };
    let mut means =
        [own.map_or(0.0, |bytes| bytes as f64 / ranks_here as f64), f64::from(u8::from(own.is_some()))];
    comm.all_reduce(&mut means, ReduceOp::Mean)?;
    let [mean, known] = means;
    Ok((known == 1.0).then_some(mean as u64))
}

/// Returns the bytes of this size in what the kernel tells of a process.
fn proportional(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_used_is_counted_in_each_rank_s_part() {
        let text = "00400000-7ffc [rollup]\nRss:  9 kB\nPss:             1536 kB\nPss_Dirty:  3 kB\n";
        assert_eq!((proportional(text), proportional("Rss: 9 kB\n")), (Some(1_572_864), None));
        let used = vec![1_u8; 64 << 20];
        let found = unisono::threads(2, |mut comm| bytes_per_rank(&mut comm).unwrap());
        assert_eq!(found[0], found[1]);
        assert!(found[0].expect("Linux says it") >= 32 << 20, "{found:?}");
        drop(used);
    }
}
