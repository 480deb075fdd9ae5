//! The set-up of ranks that are processes, before they have links: nodes, cores, status board and shared memory.

use std::hash::{BuildHasher as _, RandomState};

use unisono_collectives::{Rank, Topology};

use super::bootstrap::{Bootstrap, gather};
use super::far::Far;
use super::link::Links;
use super::node::{self, LocalRanks, Sharing};
use super::shared::Shared;
use super::{Fabric, usable_cores, warnings};
use crate::config::{Config, Inside};
use crate::error::Result;
use crate::method::beside_memory;
use crate::status::StatusBoard;
use crate::system;

/// A world that this rank has joined, whose nodes are not connected yet.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) topology: Topology,
    node_cores: usize,
    status: StatusBoard,
    /// The shared memory of this node's ranks, or the reason why they cannot share any.
    node: Sharing,
}

/// Joins a world with known nodes. With `declared` nodes, ranks share memory only inside each of them. Rank 0 prints `own_warnings`. All
/// ranks call it.
pub(super) fn join(
    bootstrap: &mut dyn Bootstrap,
    (topology, declared): (Topology, Option<&Topology>),
    config: &Config,
    own_warnings: Vec<String>,
) -> Result<Joined> {
    let local_ranks = LocalRanks::of_node(bootstrap, &topology)?;
    let node_cores = node_cores(bootstrap, &local_ranks)?;
    let status = match config.inside {
        Inside::SharedMemory => node::status(bootstrap, &local_ranks)?,
        Inside::Messages => StatusBoard::alone(bootstrap.rank(), bootstrap.ranks())?,
    };
    let job = gather(bootstrap, &RandomState::new().hash_one(0))?[0];
    status.set_flight_dir(config.flight_dir(job));
    warnings::print(bootstrap, (local_ranks.len(), node_cores), config, own_warnings)?;
    let local_ranks = declared.map_or(local_ranks.clone(), |declared| local_ranks.on_node_of(declared));
    let node = match config.inside {
        Inside::SharedMemory => node::share(bootstrap, &local_ranks, config, &status)?,
        Inside::Messages => Ok(None),
    };
    Ok(Joined { topology, node_cores, status, node })
}

impl Joined {
    /// Returns whether another rank shares no memory with this one.
    pub(super) fn is_far(&self, other: Rank) -> bool {
        let is_near = matches!(&self.node, Ok(Some(node)) if node.has(other));
        other != self.status.rank() && !is_near
    }

    /// Warns on one rank of the node if its ranks cannot share memory, and names the link of their messages.
    pub(super) fn warn_if_not_shared(&self, link: &str, config: &Config) {
        if config.warnings
            && let Err(why) = &self.node
            && self.topology.local_rank(self.status.rank()) == 0
        {
            system::print_once(&format!("{why}: their messages go over {link}"));
        }
    }

    /// Returns whether the ranks of this node share memory, or there is only one.
    pub(super) fn is_shared(&self) -> bool {
        self.node.is_ok()
    }

    /// Returns the fabric of a world on one node, which [shares memory](Self::is_shared).
    pub(super) fn alone(self) -> Result<Fabric> {
        let shared = match self.node.unwrap_or_default() {
            Some(shared) => shared,
            None => Shared::of_process(vec![self.status])?.remove(0),
        };
        Ok(Fabric::of_node(shared, self.node_cores))
    }

    /// Returns the fabric of a world with these links between ranks that share no memory. All ranks call it.
    pub(super) fn over(self, bootstrap: &mut dyn Bootstrap, links: Links) -> Result<Fabric> {
        let far: Vec<_> = (0..self.topology.ranks()).filter(|&other| self.is_far(other)).collect();
        let Self { topology, node_cores, status, node } = self;
        let node = node.unwrap_or_default();
        let sharing = node.as_ref().map_or(1, |node| node.members.len());
        let mut fabric = Fabric::new(status, topology, node_cores, node);
        // Nodes differ: a rank may be alone on its node, and a node may have more ranks than cores, while others are not or have fewer.
        let nodes = gather(bootstrap, &(sharing, fabric.is_oversubscribed))?;
        let (sharing, is_oversubscribed): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        fabric.is_oversubscribed = is_oversubscribed.contains(&true);
        fabric.name = name(&sharing, links.name);
        if !far.is_empty() {
            let Links { collectives, messages, controls, .. } = links;
            fabric.far = Some(Far::new(collectives, far, fabric.status.clone(), fabric.spins));
            (fabric.messages, fabric.controls) = (Some(messages), controls);
        }
        Ok(fabric)
    }
}

/// Returns the name of a world whose nodes are connected by a link, given the number of ranks that share memory with every rank,
/// including itself.
fn name(sharing: &[usize], link: &'static str) -> &'static str {
    match sharing.iter().max() {
        None | Some(1) => link,
        Some(&most) if most == sharing.len() => "shm",
        Some(_) => beside_memory(link),
    }
}

/// Returns the number of cores available to the ranks of a node together. Ranks may be bound to different cores, so they exchange their
/// sets.
fn node_cores(bootstrap: &mut dyn Bootstrap, local_ranks: &LocalRanks) -> Result<usize> {
    /// The number of words in a kernel CPU set.
    const WORDS: usize = rustix::thread::CpuSet::MAX_CPU / 64;
    let own = rustix::thread::sched_getaffinity(None);
    let is_own = |core| own.as_ref().is_ok_and(|own| own.is_set(core));
    let word = |word| (0..64).filter(|bit| is_own(word * 64 + bit)).map(|bit| 1_u64 << bit).sum();
    let words: [u64; WORDS] = std::array::from_fn(word);
    let all = local_ranks.gather(bootstrap, &words)?;
    let any = (0..WORDS).map(|word| all.iter().fold(0, |any, words| any | words[word]));
    match any.map(u64::count_ones).sum::<u32>() {
        0 => Ok(usable_cores()),
        cores => Ok(cores as usize),
    }
}

/// Returns the topology of ranks with these nodes, in any form. Nodes are numbered in the order of their first ranks.
pub(super) fn topology<T: PartialEq>(nodes: &[T]) -> Topology {
    let mut known = Vec::new();
    let number = |node| {
        known.iter().position(|known| *known == node).unwrap_or_else(|| {
            known.push(node);
            known.len() - 1
        })
    };
    Topology::from_node_of(nodes.iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_by_their_first_ranks() {
        assert_eq!(topology(&[0, 1, 0, 1, 4]), Topology::from_node_of(vec![0, 1, 0, 1, 2]));
    }
}
