//! Ranks, the nodes that they live on, and the groups that phases run in.

use std::sync::Arc;

/// The number of a rank, from 0 to one less than the number of ranks in its world or group.
pub type Rank = usize;

/// An ordered set of world ranks. Inside the group, its members are numbered 0, 1, … in that order.
///
/// Clones share the members: every rank's plan names the whole world, and in a large world the plans of all
/// ranks must not hold it once each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    members: Arc<[Rank]>,
}

impl Group {
    /// The group of these world ranks, in this order.
    pub fn new(members: Vec<Rank>) -> Self {
        Self { members: members.into() }
    }

    /// How many ranks the group has.
    pub fn ranks(&self) -> usize {
        self.members.len()
    }

    /// The world rank of a member.
    ///
    /// # Panics
    /// If the group has no such member.
    pub fn member(&self, position: Rank) -> Rank {
        self.members[position]
    }

    /// The world ranks of all members.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The number that a world rank has inside the group, if it is a member.
    pub fn position(&self, rank: Rank) -> Option<Rank> {
        self.members.iter().position(|&member| member == rank)
    }
}

/// Which node each rank of a world lives on.
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
    // What follows from it, found once: plans ask for it, all ranks' plans p times.
    local_rank: Vec<Rank>,
    nodes: Vec<Group>,
    world: Group,
    leaders: Group,
}

impl Topology {
    /// A world whose ranks all share one node.
    pub fn single_node(ranks: usize) -> Self {
        Self::from_node_sizes(&[ranks])
    }

    /// `nodes` nodes of `ranks_per_node` ranks each, numbered node by node.
    pub fn uniform(nodes: usize, ranks_per_node: usize) -> Self {
        Self::from_node_sizes(&vec![ranks_per_node; nodes])
    }

    /// Nodes of these sizes; ranks are numbered node by node.
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

    /// The world in which rank `r` lives on node `node_of[r]`, in whatever order a launcher placed them.
    ///
    /// # Panics
    /// If the world is empty, or the node numbers do not run from 0 without a gap.
    pub fn from_node_of(node_of: Vec<usize>) -> Self {
        assert!(!node_of.is_empty(), "a world has at least one rank");
        let mut nodes = Vec::<Vec<Rank>>::new();
        let mut local_rank = Vec::with_capacity(node_of.len());
        for (rank, &node) in node_of.iter().enumerate() {
            // A number above that of ranks leaves a gap, however the others are placed.
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

    /// Where these ranks are, in a world of their own in which they are numbered in this order.
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

    /// How many ranks the world has.
    pub fn ranks(&self) -> usize {
        self.node_of.len()
    }

    /// How many nodes the world has.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank]
    }

    /// The number of a rank among the ranks of its node.
    pub fn local_rank(&self, rank: Rank) -> Rank {
        self.local_rank[rank]
    }

    /// All ranks.
    pub fn world(&self) -> Group {
        self.world.clone()
    }

    /// The ranks of one node.
    pub fn node(&self, node: usize) -> Group {
        self.nodes[node].clone()
    }

    /// The leader (local rank 0) of every node, in the order of the nodes.
    pub fn leaders(&self) -> Group {
        self.leaders.clone()
    }

    /// How many ranks the largest node has.
    pub fn ranks_of_largest_node(&self) -> usize {
        self.nodes.iter().map(Group::ranks).max().unwrap_or(0)
    }

    /// A number of places by which all ranks can be moved (the last ones around to the first) such that any
    /// two share a node afterwards if and only if they did before: the size of a node where nodes are alike
    /// and ranks numbered node by node, 1 in a single node, and all ranks in any other world.
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
    fn worlds_look_the_same_from_every_node() {
        assert_eq!(Topology::uniform(4, 3).stride(), 3);
        assert_eq!(Topology::uniform(4, 1).stride(), 1);
        assert_eq!(Topology::single_node(6).stride(), 1);
        assert_eq!(Topology::from_node_sizes(&[2, 2, 1]).stride(), 5);
        assert_eq!(Topology::from_node_sizes(&[2, 3, 1]).stride(), 6);
        assert_eq!(Topology::from_node_of(vec![0, 1, 0, 1]).stride(), 4);
    }

    #[test]
    #[should_panic(expected = "without a gap")]
    fn a_gap_between_nodes_is_refused() {
        let _ = Topology::from_node_of(vec![0, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "every node needs a rank")]
    fn an_empty_node_is_refused() {
        let _ = Topology::from_node_sizes(&[2, 0]);
    }

    #[test]
    fn a_group_numbers_its_members() {
        let group = Group::new(vec![4, 7]);
        assert_eq!(group.position(7), Some(1));
        assert_eq!(group.position(5), None);
        assert_eq!(group.member(0), 4);
    }
}
