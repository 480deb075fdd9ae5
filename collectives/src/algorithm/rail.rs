//! **Rail.** Reduce-scatter in the node, so that each rank holds a shard of the node's sum; all-reduce each shard among the
//! ranks that hold it, one in each node (a *rail*); all-gather in the node. All ranks use the network at once.
//!
//! ```text
//!    node A: 0 ◂─▸ 1       rail 0: 0 ◂─▸ 2       node A: 0 ◂─▸ 1
//!    node B: 2 ◂─▸ 3       rail 1: 1 ◂─▸ 3       node B: 2 ◂─▸ 3
//! ```
//!
//! There are as many shards as the largest node has ranks. In a smaller node a rank holds several shards, and takes part in
//! several rails, one after the other.
//!
//! **Cost** for m nodes of l ranks: 2(l−1) steps of the [ring](mod@super::ring) in the node, and the
//! [butterfly](mod@super::butterfly) over m on n/l; every rank sends 2n(l−1)/l inside, and 2n(m−1)/(ml)
//! outside where m is a power of two.
//!
//! **Right when** the array is large and every rank has a network port, or one rank cannot fill the port.
//! **Wrong when** it is small: more steps than [hierarchical copy](super::hierarchical_copy).
//!
//! **Source**: Cho, Finkler, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network
//! hierarchy", SysML 2019; also Jia et al., "Highly scalable deep learning training system with mixed-precision" (2018), section
//! 3.3, with a reduce-scatter in place of its reduce. Between nodes it is
//! [pipelined](crate::Execution::Pipelined) over blocks: Luo et al., "HAN: a hierarchical autotuned collective communication framework", IEEE CLUSTER 2020.

use super::{Descriptor, Levels, Role, butterfly, ring};
use crate::operation::Operation;
use crate::partition::Partition;
use crate::plan::{Phase, Plan, VendorCall};
use crate::schedule::Chunks;
use crate::world::{Group, Rank, Topology};

pub(super) const DESCRIPTOR: Descriptor = Descriptor::with_levels(
    "rail",
    Levels { with_mpi: "rail+mpi", with_nccl: "rail+nccl", shards: Topology::ranks_of_largest_node },
    all_reduce,
)
.right_for(Role::SharesTheNetwork);

/// Returns the plan of one rank: a phase in its node, one for each shard that it holds, and one in its node.
pub fn all_reduce(topology: &Topology, rank: Rank) -> Plan {
    let node = topology.node(topology.node_of(rank));
    let local_rank = topology.local_rank(rank);
    let shards = topology.ranks_of_largest_node();
    let on_rail = |position| butterfly::outward(position, topology.nodes()).there_and_back();
    let chunks_per_shard = on_rail(0).chunk_count();
    let chunk_count = shards * chunks_per_shard;

    // The shards that each rank of the node holds.
    let held = Partition::fair(shards, node.ranks());
    let boundary = |part| chunks_per_shard * held.start(part);
    let gather = ring::all_gather(local_rank, node.ranks()).refined(chunk_count, boundary);
    let parts: Vec<_> =
        (0..node.ranks()).map(|part| Chunks::new(boundary(part), boundary(part + 1))).collect();
    let rails = held.elements(Chunks::one(local_rank)).map(|shard| Phase {
        name: "all-reduce on the rail",
        group: rail(topology, shards, shard),
        schedule: on_rail(topology.node_of(rank))
            .refined(chunk_count, |chunk| shard * chunks_per_shard + chunk),
        vendor: None,
    });

    let in_node = |name, schedule, operation| {
        let vendor = Some(VendorCall { operation, parts: parts.clone() });
        Phase { name, group: node.clone(), schedule, vendor }
    };
    let inwards = in_node("reduce-scatter in the node", gather.reversed(), Operation::ReduceScatter);
    let outwards = in_node("all-gather in the node", gather, Operation::AllGather);
    Plan::new(chunk_count, std::iter::once(inwards).chain(rails).chain([outwards]))
}

/// Returns the ranks that hold a shard, one in each node.
fn rail(topology: &Topology, shards: usize, shard: usize) -> Group {
    let holder = |node: usize| {
        let node = topology.node(node);
        node.member(Partition::fair(shards, node.ranks()).chunk_of(shard))
    };
    Group::new((0..topology.nodes()).map(holder).collect())
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Operation, Topology, cost};

    #[test]
    fn cost_matches_the_documentation() {
        for (nodes, local) in [(1, 1), (1, 4), (2, 2), (4, 3), (8, 8), (4, 1)] {
            let plans = Algorithm::Rail.plans(Operation::AllReduce, &Topology::uniform(nodes, local));
            let cost = cost::count(&plans.unwrap()).expect("complete");
            assert_eq!(cost.steps, 2 * (local - 1) + 2 * nodes.ilog2() as usize);
            let inside = 2 * (local - 1) * nodes;
            let outside = 2 * (nodes - 1);
            assert_eq!(cost.sent_chunks * local * nodes, (inside + outside) * cost.chunk_count);
        }
    }
}
