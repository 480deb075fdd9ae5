//! Algorithm selection: from operation, world and size to an algorithm and a reason.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use unisono_collectives::algorithm::Role;
use unisono_collectives::clock;
use unisono_collectives::model::Machine;
use unisono_collectives::names::UnknownName;
use unisono_collectives::{Algorithm, Operation, Topology};

use crate::call::Why;
use crate::method::{Method, Vendor};

mod rules;

pub use rules::{InvalidChoice, Rules};

/// The largest world for which the cost model is run before a call. (For 64 ranks it takes 10 to 20 ms per size class, for 256 up to 0.3 s.)
pub(crate) const MAX_RANKS: usize = 256;
/// Above this number of ranks, quadratic algorithms are not considered.
const MANY_RANKS: usize = 64;
/// Above `MAX_RANKS`, defaults minimise the steps for arrays of up to this size, and the bytes for larger ones.
const SMALL_BYTES: usize = 32 * 1024;

/// The choice of an algorithm by the user of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Choice {
    /// The algorithm predicted to be fastest, for each call.
    #[default]
    Auto,
    /// This method for every operation that it offers; [`Choice::Auto`] for others.
    ///
    /// An algorithm with a vendor in its intra-node phases must have [levels](unisono_collectives::algorithm::Levels). A vendor alone
    /// offers the all-reduce, and by a [`Collective`](crate::Collective) other operations too. If a communicator's method includes
    /// NCCL, it applies to arrays on GPUs, and arrays in host memory use [`Choice::Auto`].
    Method(Method),
    /// The algorithm of the rule for the array size; [`Choice::Auto`] for sizes without a rule, and for operations that the algorithm does not offer.
    Rules(Arc<Rules>),
}

const AUTO: &str = "auto";

impl Choice {
    /// Returns the method, if it is the same for all calls.
    pub fn method(&self) -> Option<Method> {
        match self {
            Self::Method(method) => Some(*method),
            Self::Auto | Self::Rules(_) => None,
        }
    }

    /// Returns the vendor of [`method`](Self::method).
    pub fn vendor(&self) -> Option<Vendor> {
        self.method().and_then(Method::vendor)
    }

    /// Returns the choice as it applies to an array in host memory.
    pub(crate) fn on_host(&self, operation: Operation) -> &Self {
        match self.method() {
            // A program with arrays on GPUs has some in host memory too.
            Some(method) if method.vendor() == Some(Vendor::Nccl) => &Self::Auto,
            Some(Method::Vendor(_)) if operation != Operation::AllReduce => &Self::Auto,
            _ => self,
        }
    }

    /// Returns the names of choices, besides rules by size.
    pub fn names() -> impl Iterator<Item = &'static str> {
        [AUTO].into_iter().chain(Method::ALL.map(Method::name))
    }

    /// Returns the algorithm that the caller requests for an array of this size, if any.
    pub(crate) fn requested(&self, size_bytes: usize) -> Option<(Algorithm, Why)> {
        match self {
            Self::Method(method) => method.algorithm().map(|algorithm| (algorithm, Why::AskedFor)),
            Self::Rules(rules) => rules.algorithm(size_bytes),
            Self::Auto => None,
        }
    }
}

impl From<Algorithm> for Choice {
    fn from(algorithm: Algorithm) -> Self {
        Self::Method(Method::Algorithm(algorithm))
    }
}

impl From<Vendor> for Choice {
    fn from(vendor: Vendor) -> Self {
        Self::Method(Method::Vendor(vendor))
    }
}

impl From<Method> for Choice {
    fn from(method: Method) -> Self {
        Self::Method(method)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad(AUTO),
            Self::Method(method) => method.fmt(f),
            Self::Rules(rules) => rules.fmt(f),
        }
    }
}

impl FromStr for Choice {
    type Err = InvalidChoice;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            AUTO => Ok(Self::Auto),
            _ if text.contains(':') => Ok(Self::Rules(Arc::new(text.parse()?))),
            name => name.parse::<Method>().map(Self::Method).map_err(|mut unknown: UnknownName| {
                unknown.known.push(AUTO);
                unknown.into()
            }),
        }
    }
}

/// A selected algorithm and the reason.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Selection {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The reason.
    pub why: Why,
}

/// Selects the algorithm predicted to be fastest for an operation on an array of `size_bytes`.
///
/// `machines` has one entry per kind of memory that the array may be in. A rank does not know the kind on other ranks, but all ranks must
/// select the same algorithm. So the selection minimises the worst slowdown over the machines, relative to the fastest algorithm on each.
///
/// This is a pure function: all ranks get the same result.
///
/// ```
/// use unisono::select::select;
/// use unisono::{Algorithm, Operation, Topology};
/// use unisono_collectives::model::Machine;
///
/// let machine = Machine { one_pass: None, ..Machine::default() };
/// let four = Topology::single_node(4);
/// let auto = |size_bytes| select(Operation::AllReduce, &four, &[machine.clone()], size_bytes, 4);
/// assert_eq!(auto(8).algorithm, Algorithm::RecursiveDoubling);
/// assert_eq!(auto(1 << 26).algorithm, Algorithm::Butterfly);
/// ```
///
/// # Panics
/// If `machines` is empty, or the size of an element is 0.
pub fn select(
    operation: Operation,
    topology: &Topology,
    machines: &[Machine],
    size_bytes: usize,
    element_size_bytes: usize,
) -> Selection {
    let candidates = candidates(operation, topology);
    if candidates.len() > 1 && topology.ranks() > MAX_RANKS {
        return usual(operation, topology, size_bytes);
    }
    select_among(&candidates, operation, topology, machines, size_bytes, element_size_bytes)
}

/// Selects one of `candidates`, which all offer the operation.
fn select_among(
    candidates: &[Algorithm],
    operation: Operation,
    topology: &Topology,
    machines: &[Machine],
    size_bytes: usize,
    element_size_bytes: usize,
) -> Selection {
    if let [algorithm] = candidates[..] {
        return Selection { algorithm, why: Why::OnlyOne };
    }
    if topology.ranks() == 1 {
        return Selection { algorithm: candidates[0], why: Why::Default("there is no other rank") };
    }
    let times_us = |machine: &Machine| {
        let time_us = |&algorithm| {
            clock::predict(algorithm, operation, topology, machine, size_bytes, element_size_bytes)
                .map_or(f64::INFINITY, |predicted| predicted.time_us)
        };
        candidates.iter().map(time_us).collect::<Vec<_>>()
    };
    let times_us: Vec<_> = machines.iter().map(times_us).collect();
    let slowdown = |candidate: usize| {
        let relative = |times_us: &Vec<f64>| {
            times_us[candidate] / times_us.iter().copied().fold(f64::INFINITY, f64::min)
        };
        times_us.iter().map(relative).fold(0.0, f64::max)
    };
    let mut order: Vec<_> = (0..candidates.len()).collect();
    order.sort_by(|&one, &other| slowdown(one).total_cmp(&slowdown(other)));
    let time_us = |candidate: usize| times_us[0][candidate];
    // With two ranks, several algorithms have identical steps. Skip those.
    let next = order.iter().copied().find(|&next| time_us(next) != time_us(order[0]));
    Selection {
        algorithm: candidates[order[0]],
        why: Why::Predicted {
            time_us: time_us(order[0]),
            next: next.map(|next| (candidates[next], time_us(next))),
        },
    }
}

/// Returns the algorithms that offer an operation, except those that are equivalent to another one in this topology. (With one rank per
/// node, an algorithm with levels has the steps of another one, but pipelines them over blocks.)
fn candidates(operation: Operation, topology: &Topology) -> Vec<Algorithm> {
    let has_levels = topology.nodes() > 1;
    let differs = |algorithm: &Algorithm| has_levels || algorithm.descriptor().levels.is_none();
    // Outside of all-reduces, quadratic algorithms only serve to keep the order of additions. Others are never slower.
    let is_small = topology.ranks() <= MANY_RANKS && operation == Operation::AllReduce;
    let worth = |algorithm: &Algorithm| is_small || !algorithm.descriptor().is_quadratic;
    let offers = |algorithm: &Algorithm| algorithm.plan(operation, topology, 0).is_some();
    Algorithm::ALL.into_iter().filter(differs).filter(worth).filter(offers).collect()
}

/// Returns the default for a large world.
fn usual(operation: Operation, topology: &Topology, size_bytes: usize) -> Selection {
    let has_levels = topology.nodes() > 1 && topology.ranks_of_largest_node() > 1;
    let small = size_bytes <= SMALL_BYTES;
    let (role, reason) = match operation {
        Operation::AllReduce if has_levels && small => {
            (Role::FewestBetweenNodes, "many ranks, small array: fewest messages between nodes")
        }
        Operation::AllReduce if has_levels => {
            (Role::SharesTheNetwork, "many ranks, large array: all ranks share the network")
        }
        Operation::AllReduce if small => (Role::FewestSteps, "many ranks, small array: fewest steps"),
        Operation::Scan | Operation::ExclusiveScan => (Role::FewestSteps, "many ranks: fewest steps"),
        Operation::AllReduce | Operation::ReduceScatter | Operation::AllGather => {
            (Role::FewestBytes, "many ranks: fewest bytes in few steps")
        }
        Operation::Broadcast { .. } | Operation::Reduce { .. } => {
            (Role::FromOrToOne, "many ranks, from or to one: fewest steps")
        }
        Operation::Gather { .. } | Operation::Scatter { .. } => {
            (Role::PartsOfOne, "from or to one rank: every part travels once")
        }
        Operation::AllToAll => (Role::PartsOfAll, "every part travels once, all links evenly loaded"),
    };
    Selection { algorithm: Algorithm::usual(role), why: Why::Default(reason) }
}

/// Caches selections for one world, one per size class.
#[derive(Debug)]
pub(crate) struct Selector {
    machines: Vec<Machine>,
    /// By operation, size class, size of an element, and whether the selection is limited to algorithms that keep the order of ranks.
    selections: HashMap<(Operation, usize, usize, bool), Selection>,
}

impl Selector {
    pub(crate) fn new(machines: Vec<Machine>) -> Self {
        Self { machines, selections: HashMap::new() }
    }

    /// Returns the machine of a kind of memory, by its number; the last one if there are no more.
    pub(crate) fn machine(&self, memory: usize) -> &Machine {
        &self.machines[memory.min(self.machines.len() - 1)]
    }

    /// Selects an algorithm: one of `keep` if the call needs the order of ranks.
    pub(crate) fn select(
        &mut self,
        keep: Option<&[Algorithm]>,
        operation: Operation,
        topology: &Topology,
        (size_bytes, element_size_bytes): (usize, usize),
    ) -> Selection {
        let class_bytes = class_bytes(size_bytes);
        let Self { machines, selections } = self;
        let make = || match keep {
            None => select(operation, topology, machines, class_bytes, element_size_bytes),
            Some(&[algorithm]) if topology.ranks() > MAX_RANKS => {
                Selection { algorithm, why: Why::Default("many ranks, in their order") }
            }
            Some(keep) => select_among(keep, operation, topology, machines, class_bytes, element_size_bytes),
        };
        let kind = (operation, class_bytes, element_size_bytes, keep.is_some());
        *selections.entry(kind).or_insert_with(make)
    }
}

/// Returns the smallest size of the class. A class consists of the sizes with the same two leading bits.
fn class_bytes(size_bytes: usize) -> usize {
    let rounded_bits = size_bytes.checked_ilog2().unwrap_or(0).saturating_sub(1);
    size_bytes >> rounded_bits << rounded_bits
}

#[cfg(test)]
mod tests {
    use unisono_collectives::model::Link;

    use super::*;
    use crate::call::Memory;
    use crate::tuning::Tuning;

    fn machines(transport: &str) -> Vec<Machine> {
        Memory::HOST.map(|memory| Tuning::default().machine(transport, memory, usize::MAX)).to_vec()
    }

    #[test]
    fn selected_algorithm_offers_the_operation() {
        let topologies = [1, 2, 3, 4, 7, 8, 300].map(Topology::single_node);
        let nodes = [Topology::uniform(2, 2), Topology::from_node_sizes(&[3, 1]), Topology::uniform(100, 3)];
        let machines = machines("shm+mpi");
        for topology in topologies.into_iter().chain(nodes) {
            for operation in Operation::all(0) {
                for size_bytes in [0, 8, 1 << 14, 1 << 16, 1 << 20, 1 << 28] {
                    let select = || select(operation, &topology, &machines, size_bytes, 4);
                    let Selection { algorithm, .. } = select();
                    assert!(algorithm.plan(operation, &topology, 0).is_some(), "{operation}: {algorithm}");
                    assert_eq!(select(), select());
                }
            }
        }
    }

    #[test]
    fn selection_depends_on_size_and_world() {
        let choose = |topology: &Topology, transport: &str, size_bytes| {
            select(Operation::AllReduce, topology, &machines(transport), size_bytes, 4).algorithm
        };
        let (two, eight) = (Topology::single_node(2), Topology::single_node(8));
        for transport in ["shm", "threads", "mpi"] {
            assert_eq!(choose(&two, transport, 8), Algorithm::RecursiveDoubling, "{transport}");
            assert_eq!(choose(&two, transport, 1 << 24), Algorithm::RoundRobin, "{transport}");
            assert_eq!(choose(&eight, transport, 8), Algorithm::RecursiveDoubling, "{transport}");
        }
        assert_eq!(choose(&Topology::uniform(4, 8), "shm+mpi", 1 << 26), Algorithm::Rail);
        assert_eq!(choose(&Topology::uniform(2, 1), "mpi", 8), Algorithm::RecursiveDoubling);
    }

    #[test]
    fn oversubscribed_ranks_select_algorithms_with_few_context_switches() {
        // Measured on two cores, 8 bytes: 4 ranks take 5.4 us by all-to-all, 6.9 by master-worker; 8 ranks take 18.4 and 14.9.
        let machines = Memory::HOST.map(|memory| Tuning::default().machine("shm", memory, 2));
        for (ranks, best) in [(4, Algorithm::AllToAll), (8, Algorithm::MasterWorker)] {
            let node = Topology::single_node(ranks);
            assert_eq!(select(Operation::AllReduce, &node, &machines, 8, 4).algorithm, best, "{ranks} ranks");
        }
    }

    #[test]
    fn selection_minimises_the_worst_slowdown_over_kinds_of_memory() {
        let fast = Machine::default();
        let pass = Link::uniform(fast.intra.time_us(64, true) * 1.2, 1.0).unwrap();
        let slow = Machine { one_pass: Some(pass), ..fast.clone() };
        let two = Topology::single_node(2);
        let choose = |machines: &[Machine]| select(Operation::AllReduce, &two, machines, 64, 4).algorithm;
        let much_faster = Machine { one_pass: Some(Link::uniform(0.0, 100.0).unwrap()), ..fast };
        assert_eq!(choose(std::slice::from_ref(&slow)), Algorithm::RecursiveDoubling);
        assert_eq!(choose(&[slow, much_faster]), Algorithm::RoundRobin);
    }

    #[test]
    fn size_classes_keep_two_leading_bits() {
        for (size_bytes, class) in [(0, 0), (1, 1), (2, 2), (3, 3), (5, 4), (7, 6), (1000, 768), (1024, 1024)]
        {
            assert_eq!(class_bytes(size_bytes), class, "{size_bytes}");
        }
    }

    #[test]
    fn names_are_parsed() {
        assert_eq!("auto".parse(), Ok(Choice::Auto));
        assert_eq!("mpi".parse(), Ok(Choice::from(Vendor::Mpi)));
        assert_eq!("rail+nccl".parse(), Ok(Choice::from(Method::InNodes(Algorithm::Rail, Vendor::Nccl))));
        assert_eq!("ring".parse(), Ok(Choice::from(Algorithm::Ring)));
        let error = "rimg".parse::<Choice>().unwrap_err().to_string();
        assert!(error.contains("did you mean `ring`?") && error.ends_with("mpi, nccl, auto"), "{error}");
        let rules = "tree:0-8;ring:8-";
        assert_eq!(rules.parse::<Choice>().unwrap().to_string(), rules);
    }
}
