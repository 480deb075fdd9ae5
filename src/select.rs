//! The right algorithm by itself: a table from what is known before a call (operation, nodes, bytes) to a
//! name and a reason.

use unisono_collectives::{Algorithm, Operation, Topology, named};

/// Up to this size of the array the number of steps decides, and beyond it the number of bytes.
const SMALL_BYTES: usize = 32 * 1024;
/// From this size on a ring's even load beats the fewer steps of a butterfly.
const LARGE_BYTES: usize = 1024 * 1024;

/// Why an algorithm runs that was named.
pub(crate) const ASKED_FOR: &str = "it was asked for";

/// Which algorithm a communicator uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The one that the table gives for each call.
    #[default]
    Auto,
    /// Always this one, for every operation that it offers; the table's for others.
    Algorithm(Algorithm),
    /// MPI's own all-reduce; the table's algorithm for other operations.
    Mpi,
}

impl Choice {
    /// All of them: the menu of algorithms, then `auto` and `mpi`.
    pub const ALL: [Self; Algorithm::ALL.len() + 2] = {
        let mut all = [Self::Auto; Algorithm::ALL.len() + 2];
        let mut index = 0;
        while index < Algorithm::ALL.len() {
            all[index] = Self::Algorithm(Algorithm::ALL[index]);
            index += 1;
        }
        all[index + 1] = Self::Mpi;
        all
    };

    /// The algorithm that is always used, if this names one.
    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Algorithm(algorithm) => Some(algorithm),
            Self::Auto | Self::Mpi => None,
        }
    }

    /// The name on the command line and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Algorithm(algorithm) => algorithm.name(),
            Self::Mpi => "mpi",
        }
    }
}

named!(Choice, "algorithm");

/// An algorithm, and why it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The reason, for a person.
    pub why: &'static str,
}

/// What the table says for an operation over an array of `size_bytes`.
///
/// ```
/// use unisono::select::select;
/// use unisono::{Algorithm, Operation, Topology};
///
/// let four = Topology::single_node(4);
/// assert_eq!(select(Operation::AllReduce, &four, 8).algorithm, Algorithm::RecursiveDoubling);
/// assert_eq!(select(Operation::AllReduce, &four, 1 << 26).algorithm, Algorithm::Ring);
/// ```
pub fn select(operation: Operation, topology: &Topology, size_bytes: usize) -> Selection {
    let chosen = |algorithm, why| Selection { algorithm, why };
    match operation {
        Operation::AllReduce if topology.nodes() > 1 && topology.ranks_of_largest_node() > 1 => {
            if size_bytes <= SMALL_BYTES {
                chosen(
                    Algorithm::HierarchicalCopy,
                    "several nodes, small array: fewest messages between nodes",
                )
            } else {
                chosen(Algorithm::Rail, "several nodes, large array: all ranks share the network")
            }
        }
        Operation::AllReduce if size_bytes <= SMALL_BYTES => {
            chosen(Algorithm::RecursiveDoubling, "small array: fewest steps")
        }
        Operation::AllReduce | Operation::ReduceScatter | Operation::AllGather => {
            let even = topology.ranks().is_power_of_two();
            if even && size_bytes < LARGE_BYTES {
                chosen(Algorithm::Butterfly, "a power of two of ranks: fewest bytes in few steps")
            } else {
                chosen(Algorithm::Ring, "large array: fewest bytes, and every link evenly loaded")
            }
        }
        Operation::Broadcast { .. } | Operation::Reduce { .. } => {
            chosen(Algorithm::Tree, "from or to one rank: fewest steps")
        }
        Operation::Gather { .. } | Operation::Scatter { .. } => {
            chosen(Algorithm::MasterWorker, "from or to one rank: every part travels once")
        }
        Operation::AllToAll => {
            chosen(Algorithm::RoundRobin, "every part travels once, all links evenly loaded")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_chosen_offers_the_operation() {
        let topologies = [1, 2, 3, 4, 7, 8].map(Topology::single_node);
        for topology in
            topologies.into_iter().chain([Topology::uniform(2, 2), Topology::from_node_sizes(&[3, 1])])
        {
            for operation in Operation::all(0) {
                for size_bytes in [0, 8, 1 << 14, 1 << 16, 1 << 20, 1 << 28] {
                    let Selection { algorithm, .. } = select(operation, &topology, size_bytes);
                    assert!(algorithm.plan(operation, &topology, 0).is_some(), "{operation}: {algorithm}");
                }
            }
        }
    }

    #[test]
    fn names_are_read() {
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert_eq!("mpi".parse(), Ok(Choice::Mpi));
        assert_eq!("ring".parse(), Ok(Choice::Algorithm(Algorithm::Ring)));
        let error = "rimg".parse::<Choice>().unwrap_err().to_string();
        assert!(error.contains("did you mean \"ring\"?") && error.ends_with("auto, mpi"), "{error}");
    }
}
