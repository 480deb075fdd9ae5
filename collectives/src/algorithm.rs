//! The catalogue of algorithms by name, with their properties, so that other code need not know them by name, and the plan of each for one rank.

use crate::names::named;
use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::world::{Rank, Topology};

pub mod all_to_all;
pub mod butterfly;
pub mod double_tree;
pub mod hierarchical_copy;
pub mod master_worker;
pub mod rail;
pub mod recursive_doubling;
pub mod ring;
pub mod round_robin;
pub mod tree;

/// An algorithm: a pure function from a rank and its world to the plan of that rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank sends its whole array to every other: [`all_to_all`].
    AllToAll,
    /// One rank reduces all arrays: [`master_worker`].
    MasterWorker,
    /// Every rank reduces its own part, by direct exchange: [`round_robin`].
    RoundRobin,
    /// A binomial tree, up and down: [`tree`].
    Tree,
    /// Two binary trees at once: [`double_tree`].
    DoubleTree,
    /// Recursive halving and doubling: [`butterfly`].
    Butterfly,
    /// Recursive doubling of whole arrays: [`recursive_doubling`].
    RecursiveDoubling,
    /// Around a ring of neighbours: [`ring`].
    Ring,
    /// Reduce in the node, all-reduce among the leaders, broadcast in the node: [`hierarchical_copy`].
    HierarchicalCopy,
    /// Reduce-scatter in the node, one all-reduce per shard between nodes, all-gather in the node: [`rail`].
    Rail,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 10] = [
        Self::AllToAll,
        Self::MasterWorker,
        Self::RoundRobin,
        Self::Tree,
        Self::DoubleTree,
        Self::Butterfly,
        Self::RecursiveDoubling,
        Self::Ring,
        Self::HierarchicalCopy,
        Self::Rail,
    ];

    /// Returns the properties of the algorithm, apart from its steps.
    pub const fn descriptor(self) -> &'static Descriptor {
        match self {
            Self::AllToAll => &all_to_all::DESCRIPTOR,
            Self::MasterWorker => &master_worker::DESCRIPTOR,
            Self::RoundRobin => &round_robin::DESCRIPTOR,
            Self::Tree => &tree::DESCRIPTOR,
            Self::DoubleTree => &double_tree::DESCRIPTOR,
            Self::Butterfly => &butterfly::DESCRIPTOR,
            Self::RecursiveDoubling => &recursive_doubling::DESCRIPTOR,
            Self::Ring => &ring::DESCRIPTOR,
            Self::HierarchicalCopy => &hierarchical_copy::DESCRIPTOR,
            Self::Rail => &rail::DESCRIPTOR,
        }
    }

    /// Returns the name on the command line and in every table.
    pub const fn name(self) -> &'static str {
        self.descriptor().name
    }

    /// Returns the default algorithm for a role.
    ///
    /// ```
    /// use unisono_collectives::Algorithm;
    /// use unisono_collectives::algorithm::Role;
    ///
    /// assert_eq!(Algorithm::usual(Role::FewestSteps), Algorithm::RecursiveDoubling);
    /// ```
    pub fn usual(role: Role) -> Self {
        let has_it = |algorithm: &Self| algorithm.descriptor().role == Some(role);
        Self::ALL.into_iter().find(has_it).expect("each role has an algorithm")
    }

    /// Returns the hierarchical algorithms.
    pub fn with_levels() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|algorithm| algorithm.descriptor().levels.is_some())
    }

    /// Returns the plan of `rank` for `operation`; `None` if the algorithm does not offer the operation.
    ///
    /// Every algorithm offers [`Operation::AllReduce`].
    ///
    /// ```
    /// use unisono_collectives::{Algorithm, Operation, Topology};
    ///
    /// let world = Topology::single_node(4);
    /// assert!(Algorithm::Ring.plan(Operation::AllGather, &world, 2).is_some());
    /// assert!(Algorithm::Ring.plan(Operation::Broadcast { root: 0 }, &world, 2).is_none());
    /// ```
    ///
    /// # Panics
    /// If the rank, or the root of the operation, is not in the world.
    pub fn plan(self, operation: Operation, topology: &Topology, rank: Rank) -> Option<Plan> {
        let ranks = topology.ranks();
        assert!(rank < ranks, "rank {rank} is not in a world of {ranks} ranks");
        if let Some(root) = operation.root() {
            assert!(root < ranks, "root {root} is not in a world of {ranks} ranks");
        }
        self.descriptor().plan(operation, topology, rank)
    }

    /// Returns the plans of all ranks, rank 0 first.
    pub fn plans(self, operation: Operation, topology: &Topology) -> Option<Vec<Plan>> {
        let plan = self.planner(operation, topology)?;
        Some((0..topology.ranks()).map(plan).collect())
    }

    /// Returns a function from a rank to its plan. Work common to all ranks is done once, and the plans of a large world, which together may
    /// not fit into memory, can be made one after the other.
    pub fn planner(self, operation: Operation, topology: &Topology) -> Option<impl Fn(Rank) -> Plan> {
        let ranks = topology.ranks();
        // An algorithm offers the same operations to all ranks.
        self.plan(operation, topology, ranks - 1)?;
        let together = match self.descriptor().makes {
            Makes::Schedules { of_all, .. } => of_all(operation, ranks),
            Makes::Plans(_) => Vec::new(),
        };
        Some(move |rank: Rank| match together.get(rank) {
            Some(schedule) => Plan::single(self.name(), topology.world(), schedule.clone()),
            None => self.plan(operation, topology, rank).expect("it was offered to the last rank"),
        })
    }
}

named!(Algorithm, "algorithm");

/// The properties of an algorithm: name, role, levels, and how its plans are made. Each is defined in the file of its algorithm;
/// [`Algorithm::descriptor`](crate::Algorithm::descriptor) returns it.
///
/// ```
/// use unisono_collectives::Algorithm;
/// use unisono_collectives::algorithm::Role;
///
/// let tree = Algorithm::Tree.descriptor();
/// assert_eq!((tree.name, tree.role), ("tree", Some(Role::FromOrToOne)));
/// assert!(tree.levels.is_none());
/// let levels = Algorithm::Rail.descriptor().levels.expect("a rail has levels");
/// assert_eq!(levels.with_mpi, "rail+mpi");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// The name on the command line and in every table.
    pub name: &'static str,
    /// The role for which it is the default algorithm, if any.
    pub role: Option<Role>,
    /// Whether the number of messages is quadratic in the ranks: never fastest in a large world, and slowest to predict.
    pub is_quadratic: bool,
    /// Set if it is hierarchical, with phases inside nodes and between them.
    pub levels: Option<Levels>,
    makes: Makes,
}

/// The role of an algorithm as a default in worlds too large to predict every algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A small array: fewest steps.
    FewestSteps,
    /// A large array: fewest bytes in few steps.
    FewestBytes,
    /// A small array over several nodes: fewest messages between nodes.
    FewestBetweenNodes,
    /// A large array over several nodes: all ranks share the network.
    SharesTheNetwork,
    /// An array from or to one rank: fewest steps.
    FromOrToOne,
    /// Parts from or to one rank: each travels once.
    PartsOfOne,
    /// Parts from all ranks to all: each travels once, all links evenly loaded.
    PartsOfAll,
}

/// The levels of a hierarchical algorithm. Each intra-node phase names the vendor's collective that can replace it
/// ([`VendorCall`](crate::VendorCall)); inter-node phases name none.
#[derive(Debug, Clone, Copy)]
pub struct Levels {
    /// The name of the method with MPI's own collectives for the intra-node phases.
    pub with_mpi: &'static str,
    /// The name of the method with NCCL for the intra-node phases.
    pub with_nccl: &'static str,
    /// The number of shards that a node's sum is divided into, each held by one rank between nodes.
    pub shards: fn(&Topology) -> usize,
}

#[derive(Debug, Clone, Copy)]
enum Makes {
    /// One phase among all ranks, regardless of nodes: the schedule of a rank, if the operation is offered.
    Schedules {
        of: fn(Operation, Rank, usize) -> Option<Schedule>,
        /// The schedules of all ranks, if they are cheaper to make together; empty if the operation is made rank by rank.
        of_all: fn(Operation, usize) -> Vec<Schedule>,
    },
    /// An all-reduce in phases.
    Plans(fn(&Topology, Rank) -> Plan),
}

impl Descriptor {
    /// Returns an algorithm that ignores nodes.
    const fn flat(name: &'static str, of: fn(Operation, Rank, usize) -> Option<Schedule>) -> Self {
        let makes = Makes::Schedules { of, of_all: |_, _| Vec::new() };
        Self { name, role: None, is_quadratic: false, levels: None, makes }
    }

    /// Returns a hierarchical all-reduce.
    const fn with_levels(name: &'static str, levels: Levels, of: fn(&Topology, Rank) -> Plan) -> Self {
        let makes = Makes::Plans(of);
        Self { name, role: None, is_quadratic: false, levels: Some(levels), makes }
    }

    /// Makes the algorithm the default for a role.
    const fn right_for(self, role: Role) -> Self {
        Self { role: Some(role), ..self }
    }

    fn plan(&self, operation: Operation, topology: &Topology, rank: Rank) -> Option<Plan> {
        match self.makes {
            Makes::Schedules { of, .. } => {
                Some(Plan::single(self.name, topology.world(), of(operation, rank, topology.ranks())?))
            }
            Makes::Plans(of) => (operation == Operation::AllReduce).then(|| of(topology, rank)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn an_operation_with_parts_has_one_chunk_for_each_rank() {
        for topology in [Topology::single_node(1), Topology::single_node(6), Topology::uniform(3, 2)] {
            let ranks = topology.ranks();
            for operation in Operation::all(0).into_iter().filter(|operation| operation.has_parts()) {
                let plans = Algorithm::ALL.map(|algorithm| algorithm.plan(operation, &topology, ranks - 1));
                assert!(plans.iter().flatten().all(|plan| plan.chunk_count() == ranks), "{operation}");
                assert!(plans.iter().flatten().count() > 0, "{operation}");
            }
        }
    }

    #[test]
    fn each_role_has_one_algorithm() {
        use Role::{
            FewestBetweenNodes, FewestBytes, FewestSteps, FromOrToOne, PartsOfAll, PartsOfOne,
            SharesTheNetwork,
        };
        let roles = [
            FewestSteps,
            FewestBytes,
            FewestBetweenNodes,
            SharesTheNetwork,
            FromOrToOne,
            PartsOfOne,
            PartsOfAll,
        ];
        for role in roles {
            let of = Algorithm::ALL.map(|algorithm| algorithm.descriptor().role == Some(role));
            assert_eq!(of.into_iter().filter(|&is_of| is_of).count(), 1, "{role:?}");
        }
    }

    #[test]
    fn misspelt_name_gets_a_suggestion() {
        let error = "buterfly".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("did you mean `butterfly`?"), "{error}");
        let error = "quicksort".parse::<Algorithm>().unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }
}
