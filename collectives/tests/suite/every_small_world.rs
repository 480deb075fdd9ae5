//! The verifier finds no defect in any algorithm, for any operation, in any world up to 64 ranks.

use unisono_collectives::{Algorithm, Operation, Topology, verify};

/// Returns the expected support of operations besides all-reduce, so that a loss is detected.
fn offers(algorithm: Algorithm, operation: Operation) -> bool {
    use Operation::{
        AllGather, AllReduce, AllToAll, Broadcast, ExclusiveScan, Gather, Reduce, ReduceScatter, Scan,
        Scatter,
    };
    match operation {
        AllReduce => true,
        ReduceScatter if algorithm == Algorithm::AllToAll => true,
        ReduceScatter | AllGather => {
            matches!(algorithm, Algorithm::RoundRobin | Algorithm::Butterfly | Algorithm::Ring)
        }
        Reduce { .. } if matches!(algorithm, Algorithm::AllToAll | Algorithm::RoundRobin) => true,
        Broadcast { .. } | Reduce { .. } => matches!(algorithm, Algorithm::Tree | Algorithm::MasterWorker),
        Gather { .. } | Scatter { .. } => algorithm == Algorithm::MasterWorker,
        AllToAll => algorithm == Algorithm::RoundRobin,
        Scan | ExclusiveScan => matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::Ring),
    }
}

fn check(algorithm: Algorithm, operation: Operation, topology: &Topology) {
    let plans = algorithm.plans(operation, topology);
    assert_eq!(plans.is_some(), offers(algorithm, operation), "{algorithm}, {operation:?}, {topology:?}");
    if let Some(plans) = plans {
        let defects = verify(&plans, operation);
        assert!(defects.is_empty(), "{algorithm}, {operation:?}, {topology:?}: {}", defects[0]);
    }
}

#[test]
fn algorithms_are_correct_on_one_node() {
    for ranks in 1..=64 {
        let topology = Topology::single_node(ranks);
        for algorithm in Algorithm::ALL {
            for operation in Operation::all(ranks / 3) {
                check(algorithm, operation, &topology);
            }
        }
    }
}

#[test]
fn rooted_operations_are_correct_for_every_root() {
    for ranks in [1, 2, 5, 8, 13] {
        for root in 0..ranks {
            for algorithm in Algorithm::ALL {
                for operation in Operation::all(root) {
                    check(algorithm, operation, &Topology::single_node(ranks));
                }
            }
        }
    }
}

#[test]
fn hierarchical_algorithms_are_correct_on_several_nodes() {
    let even = (1..=8).flat_map(|nodes| (1..=8).map(move |local| Topology::uniform(nodes, local)));
    let uneven = [&[3, 1][..], &[4, 4, 2], &[1, 5, 2, 3], &[2, 1, 1], &[7, 8]].map(Topology::from_node_sizes);
    let scattered = Topology::from_node_of(vec![0, 1, 0, 2, 1, 0, 2]);
    for topology in even.chain(uneven).chain([scattered]) {
        for algorithm in [Algorithm::HierarchicalCopy, Algorithm::Rail] {
            check(algorithm, Operation::AllReduce, &topology);
        }
    }
}

#[test]
fn every_operation_is_offered_by_an_algorithm() {
    for operation in Operation::all(2) {
        assert!(Algorithm::ALL.iter().any(|&algorithm| offers(algorithm, operation)), "{operation:?}");
    }
}

#[test]
fn large_ring_is_quick() {
    // There is no timer: these sizes would take minutes if either step were quadratic in the wrong place.
    for rank in 0..1024 {
        let plan = Algorithm::Ring.plan(Operation::AllReduce, &Topology::single_node(1024), rank).unwrap();
        assert_eq!(plan.phases()[0].schedule.steps().len(), 2046);
    }
    check(Algorithm::Ring, Operation::AllReduce, &Topology::single_node(256));
}

/// Takes about half a second.
#[test]
fn large_worlds_of_many_nodes_are_verified() {
    for nodes in (0..=9).map(|log| 1 << log) {
        check(Algorithm::Rail, Operation::AllReduce, &Topology::uniform(nodes, 512 / nodes));
    }
}
