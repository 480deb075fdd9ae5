//! What carries out a call, by name: an algorithm of ours, a vendor, or both together.

use unisono_collectives::{Algorithm, named};

/// Somebody else's collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// Those of the MPI that the program is linked with, over slices.
    Mpi,
    /// NVIDIA's, over the memory of GPUs, among the ranks of a node.
    Nccl,
}

/// What carries out a call, in the host's memory and on GPUs alike. [`Ran`](crate::Ran) says which did, and it may be chosen: for
/// one call by [`CallBuilder::algorithm`](crate::CallBuilder::algorithm), or as a [`Choice`](crate::Choice) for all.
///
/// ```
/// use unisono::{Algorithm, Choice, Method, Vendor};
///
/// let method: Method = "rail+nccl".parse().unwrap();
/// assert_eq!(method, Method::InNodes(Algorithm::Rail, Vendor::Nccl));
/// assert_eq!((method.algorithm(), method.vendor()), (Some(Algorithm::Rail), Some(Vendor::Nccl)));
/// assert_eq!(Choice::from(method).to_string(), "rail+nccl");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The schedules of an algorithm.
    Algorithm(Algorithm),
    /// An algorithm whose phases in a node a vendor carries out.
    InNodes(Algorithm, Vendor),
    /// A vendor alone.
    Vendor(Vendor),
}

impl Method {
    /// All of them. A position in this list is what ranks tell each other.
    pub const ALL: [Self; METHODS] = {
        let mut all = [Self::Vendor(Vendor::Mpi); METHODS];
        let algorithms = Algorithm::ALL.len();
        let (mut of, mut position) = (0, algorithms);
        while of < algorithms {
            let algorithm = Algorithm::ALL[of];
            all[of] = Self::Algorithm(algorithm);
            if is_for_vendors(algorithm) {
                all[position] = Self::InNodes(algorithm, Vendor::Mpi);
                all[position + 1] = Self::InNodes(algorithm, Vendor::Nccl);
                position += 2;
            }
            of += 1;
        }
        all[position] = Self::Vendor(Vendor::Mpi);
        all[position + 1] = Self::Vendor(Vendor::Nccl);
        all
    };

    /// The name on the command line and in every table.
    ///
    /// # Panics
    /// If the algorithm has no phase for a vendor.
    pub fn name(self) -> &'static str {
        match self {
            Self::Algorithm(algorithm) => algorithm.name(),
            Self::InNodes(algorithm, vendor) => {
                let levels = algorithm.descriptor().levels;
                let levels = levels.unwrap_or_else(|| panic!("{algorithm} has no phase for a vendor"));
                match vendor {
                    Vendor::Mpi => levels.with_mpi,
                    Vendor::Nccl => levels.with_nccl,
                }
            }
            Self::Vendor(Vendor::Mpi) => "mpi",
            Self::Vendor(Vendor::Nccl) => "nccl",
        }
    }

    /// The algorithm whose schedules carry it out, if one's do.
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Algorithm(algorithm) | Self::InNodes(algorithm, _) => Some(algorithm),
            Self::Vendor(_) => None,
        }
    }

    /// The vendor that takes part in it, if one does.
    pub fn vendor(self) -> Option<Vendor> {
        match self {
            Self::InNodes(_, vendor) | Self::Vendor(vendor) => Some(vendor),
            Self::Algorithm(_) => None,
        }
    }

    /// What moves the bytes of a call, where those of our own algorithms go over `transport`.
    pub(crate) fn link(self, transport: &'static str) -> &'static str {
        match self {
            Self::Algorithm(_) => transport,
            Self::Vendor(Vendor::Nccl) => "nccl",
            Self::Vendor(Vendor::Mpi) | Self::InNodes(_, Vendor::Mpi) => "mpi",
            // Nodes that are declared for a trial may be one.
            Self::InNodes(_, Vendor::Nccl) => match transport {
                "threads" => "nccl+threads",
                "shm" => "nccl+shm",
                _ => "nccl+mpi",
            },
        }
    }

    /// Its position among all.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Algorithm(algorithm) => algorithm as u8,
            _ => Self::ALL.iter().position(|&other| other == self).map_or(u8::MAX, |position| position as u8),
        }
    }

    /// The vendor that carries out the phases in a node, if one does.
    pub(crate) fn in_nodes(self) -> Option<Vendor> {
        match self {
            Self::InNodes(_, vendor) => Some(vendor),
            Self::Algorithm(_) | Self::Vendor(_) => None,
        }
    }
}

named!(Method, "algorithm");

/// Each algorithm, with each vendor in its nodes where it has phases there, and each vendor alone.
const METHODS: usize = {
    let (mut of, mut count) = (0, Algorithm::ALL.len() + 2);
    while of < Algorithm::ALL.len() {
        count += if is_for_vendors(Algorithm::ALL[of]) { 2 } else { 0 };
        of += 1;
    }
    count
};

/// Whether an algorithm has phases in a node that a vendor may carry out.
pub(crate) const fn is_for_vendors(algorithm: Algorithm) -> bool {
    algorithm.descriptor().levels.is_some()
}

/// The algorithms that have, by name, for a person.
pub(crate) fn those_for_vendors() -> String {
    Algorithm::with_levels().map(Algorithm::name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_bring_their_own_links() {
        let links = |transport| {
            let methods = ["ring", "mpi", "rail+mpi", "nccl", "rail+nccl"];
            methods.map(|name| name.parse::<Method>().unwrap().link(transport))
        };
        assert_eq!(links("shm+mpi"), ["shm+mpi", "mpi", "mpi", "nccl", "nccl+mpi"]);
        assert_eq!(links("shm"), ["shm", "mpi", "mpi", "nccl", "nccl+shm"]);
    }

    #[test]
    fn every_means_has_a_name_and_a_code() {
        for (code, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(method.code()), code);
            assert_eq!(method.name().parse(), Ok(method));
        }
    }
}
