//! Ranks, their nodes, and the groups in which phases run.

use std::sync::Arc;

/// The number of a rank, from 0 to one less than the number of ranks in its world or group.
pub type Rank = usize;

/// An ordered set of world ranks. Within the group, its members are numbered 0, 1, … in that order.
///
/// Clones share the members: every rank's plan contains the whole world, which must not be stored once per rank in a large
/// world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    members: Arc<[Rank]>,
}

impl Group {
    /// Returns the group of these world ranks, in this order.
    pub fn new(members: Vec<Rank>) -> Self {
        Self { members: members.into() }
    }

    /// Returns the number of ranks in the group.
    pub fn ranks(&self) -> usize {
        self.members.len()
    }

    /// Returns the world rank of a member.
    ///
    /// # Panics
    /// If the group has no such member.
    pub fn member(&self, position: Rank) -> Rank {
        self.members[position]
    }

    /// Returns the world ranks of all members.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// Returns the position of a world rank in the group, if it is a member.
    pub fn position(&self, rank: Rank) -> Option<Rank> {
        self.members.iter().position(|&member| member == rank)
    }
}

/// The node of each rank of a world.
///
/// ```
/// use unisono_collectives::Topology;
///
/// let topology = Topology::from_node_sizes(&[3, 1]);
/// assert_eq!(topology.ranks(), 4);
/// assert_eq!(topology.leaders().members(), [0, 3]);
/// assert_eq!(topology.local_rank(2), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Topology {
    node_of: Vec<usize>,
    // Derived data, computed once, since the plan of every rank needs them.
    local_rank: Vec<Rank>,
    nodes: Vec<Group>,
    world: Group,
    leaders: Group,
}

impl Topology {
    /// Returns a world whose ranks are all on one node.
    pub fn single_node(ranks: usize) -> Self {
        Self::from_node_sizes(&[ranks])
    }

    /// Returns a world of `nodes` nodes of `ranks_per_node` ranks each, numbered node by node.
    pub fn uniform(nodes: usize, ranks_per_node: usize) -> Self {
        Self::from_node_sizes(&vec![ranks_per_node; nodes])
    }

    /// Returns a world of nodes of these sizes. Ranks are numbered node by node.
    ///
    /// # Panics
    /// If there is no node, or a node has no rank.
    pub fn from_node_sizes(sizes: &[usize]) -> Self {
        let node_of =
            sizes.iter().enumerate().flat_map(|(node, &size)| std::iter::repeat_n(node, size)).collect();
        let topology = Self::from_node_of(node_of);
        assert_eq!(topology.nodes(), sizes.len(), "every node needs a rank, got sizes {sizes:?}");
        topology
    }

    /// Returns a world in which rank `r` is on node `node_of[r]`, in any order of placement.
    ///
    /// # Panics
    /// If the world is empty, or the node numbers have a gap.
    pub fn from_node_of(node_of: Vec<usize>) -> Self {
        assert!(!node_of.is_empty(), "a world has at least one rank");
        let mut nodes = Vec::<Vec<Rank>>::new();
        let mut local_rank = Vec::with_capacity(node_of.len());
        for (rank, &node) in node_of.iter().enumerate() {
            // A node number that is not below the number of ranks implies a gap.
            assert!(node < node_of.len(), "nodes are numbered from 0 without a gap, got {node_of:?}");
            nodes.resize_with(nodes.len().max(node + 1), Vec::new);
            local_rank.push(nodes[node].len());
            nodes[node].push(rank);
        }
        assert!(
            nodes.iter().all(|members| !members.is_empty()),
            "nodes are numbered from 0 without a gap, got {node_of:?}"
        );
        let leaders = Group::new(nodes.iter().map(|members| members[0]).collect());
        let world = Group::new((0..node_of.len()).collect());
        Self { local_rank, nodes: nodes.into_iter().map(Group::new).collect(), world, leaders, node_of }
    }

    /// Returns the topology of these ranks as a separate world, numbered in this order.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn among(&self, ranks: &[Rank]) -> Self {
        let mut nodes: Vec<_> = ranks.iter().map(|&rank| self.node_of[rank]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let number =
            |rank: &Rank| nodes.binary_search(&self.node_of[*rank]).expect("the node of one of them");
        Self::from_node_of(ranks.iter().map(number).collect())
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.node_of.len()
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank]
    }

    /// Returns the local rank: a rank's number among the ranks of its node.
    pub fn local_rank(&self, rank: Rank) -> Rank {
        self.local_rank[rank]
    }

    /// Returns all ranks.
    pub fn world(&self) -> Group {
        self.world.clone()
    }

    /// Returns the ranks of one node.
    pub fn node(&self, node: usize) -> Group {
        self.nodes[node].clone()
    }

    /// Returns the leader (local rank 0) of every node, in the order of the nodes.
    pub fn leaders(&self) -> Group {
        self.leaders.clone()
    }

    /// Returns the number of ranks on the largest node.
    pub fn ranks_of_largest_node(&self) -> usize {
        self.nodes.iter().map(Group::ranks).max().unwrap_or(0)
    }

    /// Returns a shift of all ranks (the last ones wrap around) under which ranks share a node if and only if they did before: the size of a node if
    /// all nodes have the same size and ranks are numbered node by node, 1 on a single node, and the number of ranks in any other world.
    pub(crate) fn stride(&self) -> usize {
        let ranks = self.ranks();
        let local_ranks = self.nodes[0].ranks();
        let uniform = (0..ranks).all(|rank| self.node_of[rank] == rank / local_ranks)
            && ranks.is_multiple_of(local_ranks);
        match (self.nodes(), uniform) {
            (1, _) => 1,
            (_, true) => local_ranks,
            (_, false) => ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_placed_round_robin_keep_their_nodes() {
        let topology = Topology::from_node_of(vec![0, 1, 0, 1, 0]);
        assert_eq!(topology.node(0).members(), [0, 2, 4]);
        assert_eq!(topology.node(1).members(), [1, 3]);
        assert_eq!(topology.local_rank(4), 2);
        assert_eq!(topology.leaders().members(), [0, 1]);
        assert_eq!(topology.ranks_of_largest_node(), 3);
    }

    #[test]
    fn stride_preserves_the_nodes() {
        assert_eq!(Topology::uniform(4, 3).stride(), 3);
        assert_eq!(Topology::uniform(4, 1).stride(), 1);
        assert_eq!(Topology::single_node(6).stride(), 1);
        assert_eq!(Topology::from_node_sizes(&[2, 2, 1]).stride(), 5);
        assert_eq!(Topology::from_node_sizes(&[2, 3, 1]).stride(), 6);
        assert_eq!(Topology::from_node_of(vec![0, 1, 0, 1]).stride(), 4);
    }

    #[test]
    #[should_panic(expected = "without a gap")]
    fn gap_between_nodes_is_refused() {
        let _ = Topology::from_node_of(vec![0, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "every node needs a rank")]
    fn empty_node_is_refused() {
        let _ = Topology::from_node_sizes(&[2, 0]);
    }

    #[test]
    fn group_numbers_its_members() {
        let group = Group::new(vec![4, 7]);
        assert_eq!(group.position(7), Some(1));
        assert_eq!(group.position(5), None);
        assert_eq!(group.member(0), 4);
    }
}
