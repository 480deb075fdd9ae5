//! Methods: an algorithm, a vendor's collectives, or both together.

use unisono_collectives::{Algorithm, named};

/// A library that provides collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// The MPI that the program is linked with, for arrays in host memory.
    Mpi,
    /// NVIDIA's NCCL, for arrays in GPU memory, among the ranks of a node.
    Nccl,
}

/// The implementation of a call, in host memory or on GPUs. [`Ran`](crate::Ran) reports it.
/// [`CallBuilder::algorithm`](crate::CallBuilder::algorithm) sets it for one call, and a [`Choice`](crate::Choice) for all.
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
    /// An algorithm whose intra-node phases are the vendor's collectives.
    InNodes(Algorithm, Vendor),
    /// The vendor's collective alone.
    Vendor(Vendor),
}

impl Method {
    /// All methods. Ranks identify a method by its position in this list.
    pub const ALL: [Self; 16] = {
        let mut all = [Self::Vendor(Vendor::Mpi); 16];
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
        assert!(position + 2 == all.len(), "the length is the number of methods");
        all
    };

    /// Returns the name on the command line and in every table.
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

    /// Returns the algorithm, if its schedules are used.
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Algorithm(algorithm) | Self::InNodes(algorithm, _) => Some(algorithm),
            Self::Vendor(_) => None,
        }
    }

    /// Returns the vendor, if one takes part.
    pub fn vendor(self) -> Option<Vendor> {
        match self {
            Self::InNodes(_, vendor) | Self::Vendor(vendor) => Some(vendor),
            Self::Algorithm(_) => None,
        }
    }

    /// Returns the link that moves the bytes. `transport` is the transport of Unisono's algorithms.
    pub(crate) fn link(self, transport: &'static str) -> &'static str {
        match self {
            Self::Algorithm(_) => transport,
            Self::Vendor(Vendor::Nccl) => "nccl",
            Self::Vendor(Vendor::Mpi) | Self::InNodes(_, Vendor::Mpi) => "mpi",
            // `UNISONO_NODES` may declare several nodes on one machine.
            Self::InNodes(_, Vendor::Nccl) => names(transport)[2],
        }
    }

    /// Returns its position in [`Method::ALL`].
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Algorithm(algorithm) => algorithm as u8,
            _ => Self::ALL.iter().position(|&other| other == self).map_or(u8::MAX, |position| position as u8),
        }
    }

    /// Returns the vendor of the intra-node phases, if there is one.
    pub(crate) fn in_nodes(self) -> Option<Vendor> {
        match self {
            Self::InNodes(_, vendor) => Some(vendor),
            Self::Algorithm(_) | Self::Vendor(_) => None,
        }
    }
}

named!(Method, "algorithm");

/// The names of each connection between ranks: alone, with the shared memory of nodes, and with NCCL in nodes.
const CONNECTIONS: [[&str; 3]; 5] = [
    ["threads", "threads", "nccl+threads"],
    ["shm", "shm", "nccl+shm"],
    ["mpi", "shm+mpi", "nccl+mpi"],
    ["tcp", "shm+tcp", "nccl+tcp"],
    ["ucx", "shm+ucx", "nccl+ucx"],
];

fn names(connection: &str) -> &'static [&'static str; 3] {
    let names = CONNECTIONS.iter().find(|names| names.contains(&connection));
    names.unwrap_or_else(|| panic!("`{connection}` is a name of `CONNECTIONS`"))
}

/// Returns the name of a link with the shared memory of nodes.
pub(crate) fn beside_memory(link: &str) -> &'static str {
    names(link)[1]
}

/// Returns whether an algorithm has intra-node phases that a vendor can carry out.
pub(crate) const fn is_for_vendors(algorithm: Algorithm) -> bool {
    algorithm.descriptor().levels.is_some()
}

/// Returns the names of the algorithms with such phases, for messages.
pub(crate) fn those_for_vendors() -> String {
    Algorithm::with_levels().map(Algorithm::name).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_methods_report_the_vendor_link() {
        let links = |transport| {
            let methods = ["ring", "mpi", "rail+mpi", "nccl", "rail+nccl"];
            methods.map(|name| name.parse::<Method>().unwrap().link(transport))
        };
        assert_eq!(links("shm+mpi"), ["shm+mpi", "mpi", "mpi", "nccl", "nccl+mpi"]);
        assert_eq!(links("shm+tcp"), ["shm+tcp", "mpi", "mpi", "nccl", "nccl+tcp"]);
        assert_eq!(links("shm"), ["shm", "mpi", "mpi", "nccl", "nccl+shm"]);
    }

    #[test]
    fn every_method_has_a_name_and_a_code() {
        for (code, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(method.code()), code);
            assert_eq!(method.name().parse(), Ok(method));
        }
    }
}
