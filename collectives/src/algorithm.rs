//! The menu: every algorithm by name, and the plan that it makes for one rank.

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

/// An algorithm: a pure function from a rank and its world to what that rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Whole arrays to everybody: [`all_to_all`].
    AllToAll,
    /// One rank does the work: [`master_worker`].
    MasterWorker,
    /// Every rank reduces its own part, by direct exchange: [`round_robin`].
    RoundRobin,
    /// Binomial tree up and down: [`tree`].
    Tree,
    /// Two binary trees at once: [`double_tree`].
    DoubleTree,
    /// Recursive halving and doubling: [`butterfly`].
    Butterfly,
    /// The butterfly of whole arrays: [`recursive_doubling`].
    RecursiveDoubling,
    /// Neighbour to neighbour: [`ring`].
    Ring,
    /// In the node, among the leaders, in the node: [`hierarchical_copy`].
    HierarchicalCopy,
    /// In the node, one all-reduce per local rank, in the node: [`rail`].
    Rail,
}

impl Algorithm {
    /// The whole menu.
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

    /// The name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all-to-all",
            Self::MasterWorker => "master-worker",
            Self::RoundRobin => "round-robin",
            Self::Tree => "tree",
            Self::DoubleTree => "double-tree",
            Self::Butterfly => "butterfly",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Ring => "ring",
            Self::HierarchicalCopy => "hierarchical-copy",
            Self::Rail => "rail",
        }
    }

    /// What `rank` does when this algorithm carries out `operation`; `None` if the algorithm does not offer
    /// it.
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
        match (self, operation) {
            (Self::HierarchicalCopy, Operation::AllReduce) => {
                Some(hierarchical_copy::all_reduce(topology, rank))
            }
            (Self::Rail, Operation::AllReduce) => Some(rail::all_reduce(topology, rank)),
            _ => {
                let schedule = self.flat(operation, rank, ranks)?;
                Some(Plan::single(self.name(), topology.world(), schedule))
            }
        }
    }

    /// The plans of all ranks, rank 0 first.
    pub fn plans(self, operation: Operation, topology: &Topology) -> Option<Vec<Plan>> {
        let plan = self.planner(operation, topology)?;
        Some((0..topology.ranks()).map(plan).collect())
    }

    /// What makes the plan of any one rank. What they have in common is found once, and the plans of a large
    /// world, which may not fit into memory together, can be looked at one after the other.
    pub fn planner(self, operation: Operation, topology: &Topology) -> Option<impl Fn(Rank) -> Plan> {
        let ranks = topology.ranks();
        // What an algorithm offers to one rank it offers to all.
        self.plan(operation, topology, ranks - 1)?;
        let trees = match (self, operation) {
            (Self::DoubleTree, Operation::AllReduce) => double_tree::all_outward(ranks),
            _ => Vec::new(),
        };
        Some(move |rank: Rank| match trees.get(rank) {
            Some(tree) => Plan::single(self.name(), topology.world(), tree.clone().there_and_back()),
            None => self.plan(operation, topology, rank).expect("it was offered to the last rank"),
        })
    }

    /// The schedule of an algorithm that does not look at nodes.
    fn flat(self, operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
        use Operation::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        Some(match (self, operation) {
            (Self::AllToAll, AllReduce) => all_to_all::all_reduce(rank, ranks),

            (Self::MasterWorker, AllReduce) => master_worker::broadcast(0, rank, ranks).there_and_back(),
            (Self::MasterWorker, Broadcast { root }) => master_worker::broadcast(root, rank, ranks),
            (Self::MasterWorker, Reduce { root }) => master_worker::broadcast(root, rank, ranks).reversed(),
            (Self::MasterWorker, Gather { root }) => master_worker::gather(root, rank, ranks),
            (Self::MasterWorker, Scatter { root }) => master_worker::scatter(root, rank, ranks),

            (Self::RoundRobin, AllReduce) => round_robin::all_gather(rank, ranks).there_and_back(),
            (Self::RoundRobin, AllGather) => round_robin::all_gather(rank, ranks),
            (Self::RoundRobin, ReduceScatter) => round_robin::all_gather(rank, ranks).reversed(),
            (Self::RoundRobin, AllToAll) => round_robin::all_to_all(rank, ranks),

            (Self::Tree, AllReduce) => tree::broadcast(0, rank, ranks).there_and_back(),
            (Self::Tree, Broadcast { root }) => tree::broadcast(root, rank, ranks),
            (Self::Tree, Reduce { root }) => tree::broadcast(root, rank, ranks).reversed(),

            (Self::DoubleTree, AllReduce) => double_tree::outward(rank, ranks).there_and_back(),

            (Self::Butterfly, AllReduce) => butterfly::outward(rank, ranks).there_and_back(),
            (Self::Butterfly, AllGather) => butterfly::all_gather(rank, ranks),
            (Self::Butterfly, ReduceScatter) => butterfly::all_gather(rank, ranks).reversed(),

            (Self::RecursiveDoubling, AllReduce) => recursive_doubling::all_reduce(rank, ranks),

            (Self::Ring, AllReduce) => ring::all_gather(rank, ranks).there_and_back(),
            (Self::Ring, AllGather) => ring::all_gather(rank, ranks),
            (Self::Ring, ReduceScatter) => ring::all_gather(rank, ranks).reversed(),

            _ => return None,
        })
    }
}

named!(Algorithm, "algorithm");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_round() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion() {
        let error = "buterfly".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("did you mean \"butterfly\"?"), "{error}");
        let error = "quicksort".parse::<Algorithm>().unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }
}
