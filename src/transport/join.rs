//! What ranks that are processes do first, whatever connects them: nodes, cores, status board and shared memory.

use std::hash::{BuildHasher as _, RandomState};

use unisono_collectives::Topology;

use super::bootstrap::{Bootstrap, gather};
use super::node::{self, LocalRanks, Sharing};
use super::{spins, usable_cores, warnings};
use crate::config::{Config, Inside};
use crate::error::Result;
use crate::status::StatusBoard;

/// What a rank knows of the world after joining it.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) node_cores: usize,
    /// How often a rank polls before it yields.
    pub(super) spins: u32,
    pub(super) status: StatusBoard,
    pub(super) sharing: Sharing,
}

/// Joins a world with known nodes. With `declared` nodes, ranks share memory only inside each of them. Rank 0 prints the warning
/// `odd`. All ranks call it.
pub(super) fn join(
    bootstrap: &mut dyn Bootstrap,
    (topology, declared): (&Topology, Option<&Topology>),
    config: &Config,
    odd: Vec<String>,
) -> Result<Joined> {
    let local_ranks = LocalRanks::of_node(bootstrap, topology)?;
    let node_cores = node_cores(bootstrap, &local_ranks)?;
    let spins = spins(local_ranks.len(), node_cores);
    let status = match config.inside {
        Inside::SharedMemory => node::status(bootstrap, &local_ranks)?,
        Inside::Messages => StatusBoard::alone(bootstrap.rank(), bootstrap.ranks())?,
    };
    let [job] = gather(bootstrap, [RandomState::new().hash_one(0)])?[0];
    status.set_flight_dir(config.flight_dir(job));
    warnings::say_what_is_odd(bootstrap, (local_ranks.len(), node_cores), config, odd)?;
    let local_ranks = declared.map_or(local_ranks.clone(), |declared| local_ranks.on_node_of(declared));
    let sharing = match config.inside {
        Inside::SharedMemory => {
            node::share(bootstrap, &local_ranks, config.kernel_copies, (spins, node_cores), &status)?
        }
        Inside::Messages => Sharing::Alone,
    };
    Ok(Joined { node_cores, spins, status, sharing })
}

/// The name of a world whose nodes are connected by a network, given the number of ranks that share memory with every rank, including
/// itself.
pub(super) fn name(sharing: &[[u64; 1]], network: &'static str) -> &'static str {
    match (sharing.iter().map(|[ranks]| ranks).max(), network) {
        (None | Some(1), _) => network,
        (Some(&most), _) if most == sharing.len() as u64 => "shm",
        (Some(_), "tcp") => "shm+tcp",
        (Some(_), _) => "shm+mpi",
    }
}

/// The number of cores available to the ranks of a node together. Ranks may be bound to different cores, so they have to ask
/// each other.
fn node_cores(bootstrap: &mut dyn Bootstrap, local_ranks: &LocalRanks) -> Result<usize> {
    /// The number of words in a kernel CPU set.
    const WORDS: usize = rustix::thread::CpuSet::MAX_CPU / 64;
    let own = rustix::thread::sched_getaffinity(None);
    let is_own = |core| own.as_ref().is_ok_and(|own| own.is_set(core));
    let word = |word| (0..64).filter(|bit| is_own(word * 64 + bit)).map(|bit| 1_u64 << bit).sum();
    let words: [u64; WORDS] = std::array::from_fn(word);
    let all = local_ranks.gather(bootstrap, words)?;
    let any = (0..WORDS).map(|word| all.iter().fold(0, |any, words| any | words[word]));
    match any.map(u64::count_ones).sum::<u32>() {
        0 => Ok(usable_cores()),
        cores => Ok(cores as usize),
    }
}
