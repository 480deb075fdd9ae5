//! **Double tree.** Two binary trees over the same ranks, each carrying half of the array. A rank that has
//! children in one tree is a leaf (or a root with one child) in the other, so every rank both sends and
//! receives at the same time.
//!
//! ```text
//!    first tree, chunk 0                second tree, chunk 1
//!        0                                  3
//!        └─ 2                               └─ 1
//!           ├─ 1                               ├─ 0
//!           └─ 3                               └─ 2
//! ```
//!
//! The messages of both trees are two-coloured: no rank has two sends, or two receives, of one colour. Steps alternate between
//! the colours, so one port in each direction suffices.
//!
//! **Cost**, all-reduce: at most 4⌈log2 p⌉ steps; no rank sends more than 2n; scratch: one segment.
//!
//! **Right when** the array is medium-sized and p large: logarithmic steps, and no rank sends more than twice the array,
//! for any p. **Wrong when** p is a power of two: the butterfly does the same in fewer steps.
//!
//! **Source**: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and
//! scan", Parallel Computing 35 (2009), sections 2 and 3.

use std::collections::BTreeMap;

use super::{Descriptor, Makes};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

pub(super) const DESCRIPTOR: Descriptor = Descriptor {
    makes: Makes::Schedules { of: schedule, of_all: schedules },
    ..Descriptor::flat("double-tree", schedule)
};

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    schedules(operation, ranks).into_iter().nth(rank)
}

/// Returns the schedules of all ranks. Each needs both whole trees; here they are built once. In the outward half, the roots of the two trees send
/// their chunks down.
fn schedules(operation: Operation, ranks: usize) -> Vec<Schedule> {
    if operation != Operation::AllReduce {
        return Vec::new();
    }
    let edges = edges(ranks);
    let mut steps = vec![BTreeMap::<usize, Step>::new(); ranks];
    for (&Edge { parent, child, tree }, &time) in edges.iter().zip(&times(&edges, ranks)) {
        let sends = steps[parent].entry(time).or_default();
        *sends = sends.send(child, Chunks::one(tree));
        let receives = steps[child].entry(time).or_default();
        *receives = receives.replace(parent, Chunks::one(tree));
    }
    let outward = steps.into_iter().map(|steps| Schedule::new(2, steps.into_values()));
    outward.map(Schedule::there_and_back).collect()
}

/// A message from a parent to its child in one of the trees.
#[derive(Debug, Clone, Copy)]
struct Edge {
    parent: Rank,
    child: Rank,
    tree: usize,
}

/// Returns the parent of a vertex in the first tree; odd vertices are leaves, vertex 0 is the root and has one child.
fn parent(vertex: usize, ranks: usize) -> usize {
    let level = vertex & vertex.wrapping_neg();
    let below = vertex ^ level;
    let above = below | (level << 1);
    if above < ranks { above } else { below }
}

/// Returns all edges, tree by tree, and parents before their children.
fn edges(ranks: usize) -> Vec<Edge> {
    // The second tree is the first with its vertices mirrored, or moved by one: odd ranks become even
    // vertices.
    let second =
        |vertex: usize| if ranks.is_multiple_of(2) { ranks - 1 - vertex } else { (vertex + 1) % ranks };
    let mut edges = Vec::with_capacity(2 * ranks);
    for tree in 0..2 {
        let rank = |vertex| if tree == 0 { vertex } else { second(vertex) };
        let depth = |vertex: usize| {
            std::iter::successors(Some(vertex), |&v| (v != 0).then(|| parent(v, ranks))).count()
        };
        let mut vertices: Vec<_> = (1..ranks).collect();
        vertices.sort_by_key(|&vertex| depth(vertex));
        let edge = |vertex| Edge { parent: rank(parent(vertex, ranks)), child: rank(vertex), tree };
        edges.extend(vertices.into_iter().map(edge));
    }
    edges
}

/// Returns the time at which each edge carries its message: after the edge above it, and with the parity of the edge's colour.
fn times(edges: &[Edge], ranks: usize) -> Vec<usize> {
    let colours = colours(edges, ranks);
    let mut arrival = vec![[0; 2]; ranks];
    edges
        .iter()
        .zip(colours)
        .map(|(edge, colour)| {
            let earliest = arrival[edge.parent][edge.tree] + 1;
            let time = earliest + (earliest + colour) % 2;
            arrival[edge.child][edge.tree] = time;
            time
        })
        .collect()
}

/// Returns a colour (0 or 1) for every edge, such that no rank sends, or receives, two edges of one colour. A colouring exists
/// since no rank sends or receives more than two: the conflicts form paths and even cycles.
fn colours(edges: &[Edge], ranks: usize) -> Vec<usize> {
    let mut sent = vec![Vec::new(); ranks];
    let mut received = vec![Vec::new(); ranks];
    for (index, edge) in edges.iter().enumerate() {
        sent[edge.parent].push(index);
        received[edge.child].push(index);
    }
    let mut colours = vec![None; edges.len()];
    for start in 0..edges.len() {
        let mut pending = vec![(start, 0)];
        while let Some((index, colour)) = pending.pop() {
            if colours[index].is_none() {
                colours[index] = Some(colour);
                let edge = edges[index];
                let conflicts = sent[edge.parent].iter().chain(&received[edge.child]);
                pending.extend(conflicts.map(|&other| (other, 1 - colour)));
            }
        }
    }
    colours.into_iter().map(|colour| colour.expect("every edge was a start")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Operation, Topology, cost, cost::testing};

    #[test]
    fn no_rank_sends_or_receives_two_edges_of_one_colour() {
        for ranks in 1..=130 {
            let edges = edges(ranks);
            let colours = colours(&edges, ranks);
            for (a, one) in edges.iter().enumerate() {
                for (b, other) in edges.iter().enumerate().skip(a + 1) {
                    let conflict = one.parent == other.parent || one.child == other.child;
                    assert!(!conflict || colours[a] != colours[b], "{ranks} ranks: {one:?} and {other:?}");
                }
            }
        }
    }

    #[test]
    fn cost_is_within_the_documented_bounds() {
        for ranks in 2..=130 {
            let plans = Algorithm::DoubleTree.plans(Operation::AllReduce, &Topology::single_node(ranks));
            let cost = cost::count(&plans.unwrap()).expect("complete");
            assert!(cost.steps <= 4 * testing::log2_ceil(ranks), "{ranks} ranks: {} steps", cost.steps);
            assert!(cost.sent_chunks <= 4, "{ranks} ranks: {} half arrays", cost.sent_chunks);
        }
    }
}
