//! The facts that ranks exchange about their GPUs, and the resulting choice of NCCL or the host. All ranks have the same facts and
//! make the same choice.

use bytemuck::{Pod, Zeroable};
use unisono_collectives::{Rank, Topology};

use crate::nccl::Version;

/// The facts of one rank, in exchanged form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Facts {
    /// The GPU's UUID, which does not depend on device numbering.
    pub(super) gpu: [u64; 2],
    /// The version of this rank's NCCL as one number; 0 if it has none.
    pub(super) nccl: u64,
    /// Whether this rank's NCCL is configured to let ranks share a GPU.
    pub(super) may_share: u64,
}

/// The executor of a plan's phases within nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Inside {
    Nccl,
    /// The host, with the reason why NCCL is not used.
    Host(String),
    /// No node has two ranks.
    NoPairs,
}

impl Inside {
    /// Chooses the executor by the facts of all ranks, rank 0's first.
    pub(super) fn of(facts: &[Facts], topology: &Topology) -> Self {
        if topology.ranks_of_largest_node() == 1 {
            return Self::NoPairs;
        }
        if let Some(rank) = facts.iter().position(|facts| facts.nccl == 0) {
            return Self::Host(format!("rank {rank} has no NCCL"));
        }
        let nodes = (0..topology.nodes()).map(|node| topology.node(node));
        let obstacle = |members: &[Rank]| {
            let later = |place: usize| members[place + 1..].iter();
            let mut places = members.iter().enumerate();
            places.find_map(|(place, &one)| later(place).find_map(|&other| between(facts, one, other)))
        };
        nodes.filter_map(|node| obstacle(node.members())).next().map_or(Self::Nccl, Self::Host)
    }
}

/// Returns the reason why two ranks of a node cannot be in one NCCL communicator, if there is one.
fn between(facts: &[Facts], one: Rank, other: Rank) -> Option<String> {
    let version = |rank: Rank| Version::from_code(facts[rank].nccl as u32);
    if version(one) != version(other) {
        return Some(format!("ranks {one} and {other} have NCCL {} and {}", version(one), version(other)));
    }
    let is_allowed = |rank: Rank| facts[rank].may_share != 0 && version(rank).multi_rank_gpu();
    if facts[one].gpu == facts[other].gpu && !(is_allowed(one) && is_allowed(other)) {
        return Some(format!("ranks {one} and {other} share a GPU"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(gpu: u64, nccl: u64, may_share: u64) -> Facts {
        Facts { gpu: [gpu, 7], nccl, may_share }
    }

    #[test]
    fn nccl_needs_one_version_and_a_gpu_for_each_rank() {
        let two = Topology::single_node(2);
        let inside = |one, other| Inside::of(&[one, other], &two);
        let host = |why: &str| Inside::Host(why.to_owned());
        assert_eq!(inside(facts(1, 23007, 0), facts(2, 23007, 0)), Inside::Nccl);
        assert_eq!(inside(facts(1, 23007, 0), facts(2, 0, 0)), host("rank 1 has no NCCL"));
        assert_eq!(
            inside(facts(1, 23007, 0), facts(2, 22907, 0)),
            host("ranks 0 and 1 have NCCL 2.30.7 and 2.29.7")
        );
        assert_eq!(inside(facts(1, 23007, 1), facts(1, 23007, 0)), host("ranks 0 and 1 share a GPU"));
        assert_eq!(inside(facts(1, 23007, 1), facts(1, 23007, 1)), Inside::Nccl);
        assert_eq!(inside(facts(1, 23002, 1), facts(1, 23002, 1)), host("ranks 0 and 1 share a GPU"));
    }

    #[test]
    fn only_ranks_of_one_node_are_compared() {
        let same = [facts(1, 23007, 0); 2];
        assert_eq!(Inside::of(&same, &Topology::uniform(2, 1)), Inside::NoPairs);
        let four = [facts(1, 23007, 0), facts(2, 23007, 0), facts(1, 22907, 0), facts(2, 22907, 0)];
        assert_eq!(Inside::of(&four, &Topology::uniform(2, 2)), Inside::Nccl);
    }
}
