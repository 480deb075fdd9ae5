//! What an algorithm is, beside its steps: all that others ask of it, so that they need not know it by name.

use crate::operation::Operation;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::world::{Rank, Topology};

/// What an algorithm is: its name, what it is good for, its levels, and who makes its plans. Each stands in the file of its algorithm,
/// and [`Algorithm::descriptor`](crate::Algorithm::descriptor) gives it.
///
/// ```
/// use unisono_collectives::Algorithm;
/// use unisono_collectives::algorithm::Role;
///
/// let tree = Algorithm::Tree.descriptor();
/// assert_eq!((tree.name, tree.role), ("tree", Some(Role::FromOrToOne)));
/// assert!(tree.levels.is_none());
/// let levels = Algorithm::Rail.descriptor().levels.expect("a rail looks at nodes");
/// assert_eq!(levels.with_mpi, "rail+mpi");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    /// The name on the command line and in every table.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// What it is usually right for, where it is that of all algorithms.
    pub role: Option<Role>,
    /// Whether its messages are the square of the ranks: in a large world it is never first, and takes longest to predict.
    pub is_quadratic: bool,
    /// Set where it looks at nodes: it has phases inside of them and between them.
    pub levels: Option<Levels>,
    pub(super) makes: Makes,
}

/// What one algorithm is usually right for, in worlds that are too large for a prediction of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A small array: fewest steps.
    FewestSteps,
    /// A large one: fewest bytes in few steps.
    FewestBytes,
    /// A small array over several nodes: fewest messages between nodes.
    FewestBetweenNodes,
    /// A large one over several nodes: all ranks share the network.
    SharesTheNetwork,
    /// An array from or to one rank: fewest steps.
    FromOrToOne,
    /// Parts from or to one rank: each travels once.
    PartsOfOne,
    /// Parts from all ranks to all: each travels once, all links evenly loaded.
    PartsOfAll,
}

/// The levels of an algorithm that looks at nodes. Its phases in a node each name what a vendor may do in their place
/// ([`VendorCall`](crate::VendorCall)), and those between nodes name nothing.
#[derive(Debug, Clone, Copy)]
pub struct Levels {
    /// Its name where MPI's own collectives carry out its phases in nodes.
    pub with_mpi: &'static str,
    /// Its name where NCCL does.
    pub with_nccl: &'static str,
    /// Into how many shards a node's sum is cut, each held by one rank between nodes.
    pub shards: fn(&Topology) -> usize,
}

/// Who makes the plans.
#[derive(Debug, Clone, Copy)]
pub(super) enum Makes {
    /// One phase among all ranks, whatever nodes they are on: the schedule of a rank of so many, if the operation is offered.
    Schedules {
        of: fn(Operation, Rank, usize) -> Option<Schedule>,
        /// Those of all ranks, where making them together takes less: none for an operation that is made rank by rank.
        of_all: fn(Operation, usize) -> Vec<Schedule>,
    },
    /// An all-reduce in phases.
    Plans(fn(&Topology, Rank) -> Plan),
}

impl Descriptor {
    /// An algorithm that does not look at nodes.
    pub(super) const fn flat(
        name: &'static str,
        summary: &'static str,
        of: fn(Operation, Rank, usize) -> Option<Schedule>,
    ) -> Self {
        let makes = Makes::Schedules { of, of_all: |_, _| Vec::new() };
        Self { name, summary, role: None, is_quadratic: false, levels: None, makes }
    }

    /// An all-reduce that looks at nodes.
    pub(super) const fn with_levels(
        name: &'static str,
        summary: &'static str,
        levels: Levels,
        of: fn(&Topology, Rank) -> Plan,
    ) -> Self {
        let makes = Makes::Plans(of);
        Self { name, summary, role: None, is_quadratic: false, levels: Some(levels), makes }
    }

    /// The same algorithm, which is usually right for this.
    pub(super) const fn right_for(self, role: Role) -> Self {
        Self { role: Some(role), ..self }
    }

    /// What a rank does in an operation, if it is offered.
    pub(super) fn plan(&self, operation: Operation, topology: &Topology, rank: Rank) -> Option<Plan> {
        match self.makes {
            Makes::Schedules { of, .. } => {
                Some(Plan::single(self.name, topology.world(), of(operation, rank, topology.ranks())?))
            }
            Makes::Plans(of) => (operation == Operation::AllReduce).then(|| of(topology, rank)),
        }
    }

    /// The schedules of all ranks, if they are made together.
    pub(super) fn made_together(&self, operation: Operation, ranks: usize) -> Vec<Schedule> {
        match self.makes {
            Makes::Schedules { of_all, .. } => of_all(operation, ranks),
            Makes::Plans(_) => Vec::new(),
        }
    }
}
