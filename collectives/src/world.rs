//! Ranks, the nodes that they live on, and the groups that phases run in.

/// The number of a rank, from 0 to one less than the number of ranks in its world or group.
pub type Rank = usize;

/// An ordered set of world ranks. Inside the group, its members are numbered 0, 1, … in that order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    members: Vec<Rank>,
}

impl Group {
    /// The group of these world ranks, in this order.
    pub fn new(members: Vec<Rank>) -> Self {
        Self { members }
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
    nodes: usize,
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
        assert_eq!(topology.nodes, sizes.len(), "every node needs a rank, got sizes {sizes:?}");
        topology
    }

    /// The world in which rank `r` lives on node `node_of[r]`, in whatever order a launcher placed them.
    ///
    /// # Panics
    /// If the world is empty, or the node numbers do not run from 0 without a gap.
    pub fn from_node_of(node_of: Vec<usize>) -> Self {
        assert!(!node_of.is_empty(), "a world has at least one rank");
        let nodes = node_of.iter().max().map_or(0, |last| last + 1);
        assert!(
            (0..nodes).all(|node| node_of.contains(&node)),
            "nodes are numbered from 0 without a gap, got {node_of:?}"
        );
        Self { node_of, nodes }
    }

    /// How many ranks the world has.
    pub fn ranks(&self) -> usize {
        self.node_of.len()
    }

    /// How many nodes the world has.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: Rank) -> usize {
        self.node_of[rank]
    }

    /// The number of a rank among the ranks of its node.
    pub fn local_rank(&self, rank: Rank) -> Rank {
        self.node_of[..rank].iter().filter(|&&node| node == self.node_of[rank]).count()
    }

    /// All ranks.
    pub fn world(&self) -> Group {
        Group::new((0..self.ranks()).collect())
    }

    /// The ranks of one node.
    pub fn node(&self, node: usize) -> Group {
        Group::new((0..self.ranks()).filter(|&rank| self.node_of[rank] == node).collect())
    }

    /// The leader (local rank 0) of every node, in the order of the nodes.
    pub fn leaders(&self) -> Group {
        Group::new((0..self.nodes).map(|node| self.node(node).member(0)).collect())
    }

    /// How many ranks the largest node has.
    pub fn ranks_of_largest_node(&self) -> usize {
        (0..self.nodes).map(|node| self.node(node).ranks()).max().unwrap_or(0)
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
