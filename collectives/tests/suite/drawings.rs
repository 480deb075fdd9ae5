//! Golden tests of the drawings. To accept new ones: `UPDATE_EXPECT=1 cargo test -p unisono-collectives`.

use expect_test::expect_file;
use unisono_collectives::execution::{Capabilities, CompiledPlan};
use unisono_collectives::model::Machine;
use unisono_collectives::{Algorithm, Operation, Topology, explain, explain_programs};

fn draw(algorithm: Algorithm, operation: Operation, topology: &Topology) -> String {
    let plans = algorithm.plans(operation, topology).unwrap();
    explain(algorithm.name(), operation, topology, &plans)
}

#[test]
fn ring_is_drawn() {
    let drawing = draw(Algorithm::Ring, Operation::AllReduce, &Topology::single_node(4));
    expect_file!["golden/ring-4.txt"].assert_eq(&drawing);
}

#[test]
fn butterfly_with_folding_is_drawn() {
    let drawing = draw(Algorithm::Butterfly, Operation::AllReduce, &Topology::single_node(6));
    expect_file!["golden/butterfly-6.txt"].assert_eq(&drawing);
}

#[test]
fn double_tree_is_drawn() {
    let drawing = draw(Algorithm::DoubleTree, Operation::AllReduce, &Topology::single_node(4));
    expect_file!["golden/double-tree-4.txt"].assert_eq(&drawing);
}

#[test]
fn phases_are_drawn() {
    let drawing = draw(Algorithm::HierarchicalCopy, Operation::AllReduce, &Topology::uniform(2, 2));
    expect_file!["golden/hierarchical-copy-2x2.txt"].assert_eq(&drawing);
}

#[test]
fn wide_world_is_drawn_in_part() {
    let drawing = draw(Algorithm::Tree, Operation::Broadcast { root: 3 }, &Topology::single_node(12));
    expect_file!["golden/tree-broadcast-12.txt"].assert_eq(&drawing);
}

/// Returns the programs for an operation on elements of four bytes: over memory on one node, pipelined on
/// several.
fn draw_programs(algorithm: Algorithm, operation: Operation, topology: &Topology, count: usize) -> String {
    let capabilities = Capabilities::of(&Machine::default(), topology);
    let compile = |rank| CompiledPlan::new(algorithm, operation, topology, rank).unwrap();
    let compiled: Vec<_> = (0..topology.ranks()).map(compile).collect();
    let programs: Vec<_> =
        compiled.iter().map(|compiled| compiled.program(count, 4, &capabilities)).collect();
    let execution = compiled[0].execution(count, 4, &capabilities);
    explain_programs(algorithm.name(), operation, topology, execution, &programs)
}

#[test]
fn programs_are_drawn() {
    let (four, nodes) = (Topology::single_node(4), Topology::uniform(2, 2));
    let broadcast = Operation::Broadcast { root: 0 };
    let drawings = [
        draw_programs(Algorithm::AllToAll, Operation::AllReduce, &four, 2),
        draw_programs(Algorithm::Ring, Operation::AllReduce, &four, 1 << 20),
        draw_programs(Algorithm::RoundRobin, Operation::AllReduce, &four, 1 << 20),
        draw_programs(Algorithm::MasterWorker, broadcast, &four, 1 << 20),
        draw_programs(Algorithm::RoundRobin, Operation::AllToAll, &four, 1 << 20),
        draw_programs(Algorithm::Rail, Operation::AllReduce, &nodes, 60_000),
    ];
    expect_file!["golden/programs.txt"].assert_eq(&drawings.join("\n"));
}
