//! Warnings about worlds that work, but slowly or within tight limits.

use super::bootstrap::{Bootstrap, gather};
use crate::config::{Config, warn_of_unread_settings};
use crate::error::Result;
use crate::system;

/// Prints warnings, each on one rank, unless disabled. Rank 0 also prints its `own` ones. `node` is the number of ranks and cores of this
/// node. All ranks call it.
pub(super) fn print(
    bootstrap: &mut dyn Bootstrap,
    node: (usize, usize),
    config: &Config,
    own: Vec<String>,
) -> Result<()> {
    let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let files = system::open_files();
    let too_few = files.is_some_and(|files| files < system::least_open_files(ranks));
    // The first of all ranks to which a warning applies prints it.
    let applies = [node.0 > node.1, too_few].map(|is_true| is_true && config.warnings);
    let applies_by_rank = gather(bootstrap, &applies)?;
    let first = |kind: usize| applies_by_rank.iter().position(|applies| applies[kind]) == Some(rank);
    if first(0) {
        system::print_once(&oversubscription(node.0, node.1));
    }
    if let Some(files) = files.filter(|_| first(1)) {
        system::print_once(&format!(
            "a process may have {files} files open on {}, and a rank of {ranks} should be allowed {} and one for each registered \
             array: raise `ulimit -n` (containers: --ulimit nofile=N)",
            system::host(),
            system::least_open_files(ranks)
        ));
    }
    if rank == 0 && config.warnings {
        warn_of_unread_settings();
        own.iter().for_each(|line| system::print_once(line));
    }
    Ok(())
}

/// Returns a warning for an oversubscribed node.
fn oversubscription(ranks: usize, cores: usize) -> String {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = count_of_list(online.trim());
    let bound = online.filter(|&online| online > cores).map_or(String::new(), |online| {
        format!(
            " of the {online} that it has (see `mpirun --report-bindings`, and --bind-to none, or Slurm's --cpus-per-task)"
        )
    });
    format!("{ranks} ranks on {} take turns on {cores} cores{bound}: everything is slow", system::host())
}

/// Returns the number of elements of a kernel list such as "0-3,8".
fn count_of_list(list: &str) -> Option<usize> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_counted() {
        assert_eq!((count_of_list("0-3,8"), count_of_list("0"), count_of_list("")), (Some(5), Some(1), None));
    }
}
