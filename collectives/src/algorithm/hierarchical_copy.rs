//! **Hierarchical copy.** Reduce in the node, all-reduce among the leaders, broadcast in the node: each array crosses the
//! network once per node, not once per rank.
//!
//! ```text
//!    node A: 1 ──▸ 0        0 ◂──▸ 2        node A: 0 ──▸ 1
//!    node B: 3 ──▸ 2     (leaders only)     node B: 2 ──▸ 3
//! ```
//!
//! **Cost** for m nodes of l ranks: the [tree](mod@super::tree) over l, up and down, and the [butterfly](mod@super::butterfly)
//! over m between; a leader sends n⌈log2 l⌉ inside its node, and as much as in the butterfly between nodes.
//!
//! **Right when** links between nodes are slow, links inside are fast, and the array is small or a node's
//! ranks share one network port. **Wrong when** the array is large and each rank could use the network: see
//! [rail](mod@super::rail).
//!
//! **Source**: Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations for clustered wide
//! area systems", PPoPP 1999 (each message crosses a slow link once); TensorFlow's `HierarchicalCopyAllReduce` does the same in
//! one machine. Between nodes it is [pipelined](crate::Execution::Pipelined) over blocks: Luo et al., "HAN: a
//! hierarchical autotuned collective communication framework", IEEE CLUSTER 2020.

use super::{Descriptor, Levels, Role, butterfly, tree};
use crate::operation::Operation;
use crate::plan::{Phase, Plan, VendorCall};
use crate::world::{Rank, Topology};

pub(super) const DESCRIPTOR: Descriptor = Descriptor::with_levels(
    "hierarchical-copy",
    Levels { with_mpi: "hierarchical-copy+mpi", with_nccl: "hierarchical-copy+nccl", shards: |_| 1 },
    all_reduce,
)
.right_for(Role::FewestBetweenNodes);

/// Returns the plan of one rank: a phase in its node, one among leaders if it is a leader, and one in its
/// node.
pub fn all_reduce(topology: &Topology, rank: Rank) -> Plan {
    let node = topology.node(topology.node_of(rank));
    let broadcast = tree::broadcast(0, topology.local_rank(rank), node.ranks());
    let among_leaders = |position| butterfly::outward(position, topology.nodes()).there_and_back();
    // The leaders' algorithm has the finest chunks; intra-node phases treat the array as one piece.
    let chunk_count = among_leaders(0).chunk_count();
    let whole = |schedule: crate::Schedule| schedule.refined(chunk_count, |chunk| chunk * chunk_count);

    let in_node = |name, schedule, operation| {
        let vendor = Some(VendorCall { operation, parts: Vec::new() });
        Phase { name, group: node.clone(), schedule: whole(schedule), vendor }
    };
    let inwards = in_node("reduce in the node", broadcast.reversed(), Operation::Reduce { root: 0 });
    let across = (topology.local_rank(rank) == 0).then(|| Phase {
        name: "all-reduce among leaders",
        group: topology.leaders(),
        schedule: among_leaders(topology.node_of(rank)),
        vendor: None,
    });
    let outwards = in_node("copy in the node", broadcast, Operation::Broadcast { root: 0 });
    Plan::new(chunk_count, [Some(inwards), across, Some(outwards)].into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Operation, Topology, cost};

    #[test]
    fn cost_matches_the_documentation() {
        for (nodes, local) in [(1, 1), (2, 2), (4, 3), (8, 8), (4, 1)] {
            let plans =
                Algorithm::HierarchicalCopy.plans(Operation::AllReduce, &Topology::uniform(nodes, local));
            let cost = cost::count(&plans.unwrap()).expect("complete");
            let height = crate::cost::testing::log2_ceil(local);
            let log = nodes.ilog2() as usize;
            assert_eq!(cost.steps, 2 * height + 2 * log);
            // With a power of two of nodes, a leader sends 2(m-1)/m outside, and the height of its node's tree inside.
            assert_eq!(cost.sent_chunks * nodes, (2 * (nodes - 1) + height * nodes) * cost.chunk_count);
        }
    }
}
