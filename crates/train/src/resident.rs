//! The resident memory of ranks.

use std::fs;

use unisono::{Communicator, ReduceOp};

use crate::TrainError;

/// Returns the resident memory of a rank in bytes, as the mean over all ranks. Memory that several processes share counts in equal parts (Linux's
/// proportional set size). If the threads of a process are ranks, they divide the memory of the process. `None` where the system does not report it.
/// Called by all ranks.
pub(crate) fn bytes_per_rank(comm: &mut Communicator) -> Result<Option<u64>, TrainError> {
    let own = fs::read_to_string("/proc/self/smaps_rollup").ok().and_then(|text| proportional(&text));
    let ranks_here = if comm.transport() == "threads" { comm.ranks() } else { 1 };
    let mut means =
        [own.map_or(0.0, |bytes| bytes as f64 / ranks_here as f64), f64::from(u8::from(own.is_some()))];
    comm.all_reduce(&mut means, ReduceOp::Mean)?;
    let [mean, known] = means;
    Ok((known == 1.0).then_some(mean as u64))
}

/// Returns the proportional set size in the kernel's report on a process, in bytes.
fn proportional(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_use_is_divided_among_the_ranks() {
        let text = "00400000-7ffc [rollup]\nRss:  9 kB\nPss:             1536 kB\nPss_Dirty:  3 kB\n";
        assert_eq!((proportional(text), proportional("Rss: 9 kB\n")), (Some(1_572_864), None));
        let used = vec![1_u8; 64 << 20];
        let found = unisono::threads(2, |mut comm| bytes_per_rank(&mut comm).unwrap());
        assert_eq!(found[0], found[1]);
        assert!(found[0].expect("Linux says it") >= 32 << 20, "{found:?}");
        drop(used);
    }
}
