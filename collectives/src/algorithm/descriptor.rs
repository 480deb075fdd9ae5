//! Properties of algorithms, so that other code need not know them by name.

use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::world::{Rank, Topology};

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
    /// A summary in one line.
    pub summary: &'static str,
    /// The role for which it is the default algorithm, if any.
    pub role: Option<Role>,
    /// Whether the number of messages is quadratic in the ranks: never fastest in a large world, and slowest to predict.
    pub is_quadratic: bool,
    /// Set if it is hierarchical, with phases inside nodes and between them.
    pub levels: Option<Levels>,
    pub(super) makes: Makes,
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

/// The generator of an algorithm's plans.
#[derive(Debug, Clone, Copy)]
pub(super) enum Makes {
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
    pub(super) const fn flat(
        name: &'static str,
        summary: &'static str,
        of: fn(Operation, Rank, usize) -> Option<Schedule>,
    ) -> Self {
        let makes = Makes::Schedules { of, of_all: |_, _| Vec::new() };
        Self { name, summary, role: None, is_quadratic: false, levels: None, makes }
    }

    /// Returns a hierarchical all-reduce.
    pub(super) const fn with_levels(
        name: &'static str,
        summary: &'static str,
        levels: Levels,
        of: fn(&Topology, Rank) -> Plan,
    ) -> Self {
        let makes = Makes::Plans(of);
        Self { name, summary, role: None, is_quadratic: false, levels: Some(levels), makes }
    }

    /// Makes the algorithm the default for a role.
    pub(super) const fn right_for(self, role: Role) -> Self {
        Self { role: Some(role), ..self }
    }

    /// Returns the plan of a rank, if the operation is offered.
    pub(super) fn plan(&self, operation: Operation, topology: &Topology, rank: Rank) -> Option<Plan> {
        match self.makes {
            Makes::Schedules { of, .. } => {
                Some(Plan::single(self.name, topology.world(), of(operation, rank, topology.ranks())?))
            }
            Makes::Plans(of) => (operation == Operation::AllReduce).then(|| of(topology, rank)),
        }
    }

    /// Returns the schedules of all ranks, if they are made together.
    pub(super) fn made_together(&self, operation: Operation, ranks: usize) -> Vec<Schedule> {
        match self.makes {
            Makes::Schedules { of_all, .. } => of_all(operation, ranks),
            Makes::Plans(_) => Vec::new(),
        }
    }
}
