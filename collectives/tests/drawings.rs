//! The drawings are a joy to look at, and stay so. To accept new ones: `UPDATE_EXPECT=1 cargo test -p
//! unisono-collectives`.

use expect_test::expect_file;
use unisono_collectives::{Algorithm, Operation, Topology, explain};

fn draw(algorithm: Algorithm, operation: Operation, topology: &Topology) -> String {
    let plans = algorithm.plans(operation, topology).unwrap();
    explain(algorithm.name(), operation, topology, &plans)
}

#[test]
fn a_ring() {
    let drawing = draw(Algorithm::Ring, Operation::AllReduce, &Topology::single_node(4));
    expect_file!["golden/ring-4.txt"].assert_eq(&drawing);
}

#[test]
fn a_butterfly_with_folding() {
    let drawing = draw(Algorithm::Butterfly, Operation::AllReduce, &Topology::single_node(6));
    expect_file!["golden/butterfly-6.txt"].assert_eq(&drawing);
}

#[test]
fn two_trees() {
    let drawing = draw(Algorithm::DoubleTree, Operation::AllReduce, &Topology::single_node(4));
    expect_file!["golden/double-tree-4.txt"].assert_eq(&drawing);
}

#[test]
fn phases() {
    let drawing = draw(Algorithm::HierarchicalCopy, Operation::AllReduce, &Topology::uniform(2, 2));
    expect_file!["golden/hierarchical-copy-2x2.txt"].assert_eq(&drawing);
}

#[test]
fn a_world_that_is_too_wide() {
    let drawing = draw(Algorithm::Tree, Operation::Broadcast { root: 3 }, &Topology::single_node(12));
    expect_file!["golden/tree-broadcast-12.txt"].assert_eq(&drawing);
}
