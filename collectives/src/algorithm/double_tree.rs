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

use super::descriptor::{Descriptor, Makes};
use crate::operation::Operation;
use crate::schedule::{Chunks, Schedule, Step};
use crate::world::Rank;

/// The catalogue entry.
pub const DESCRIPTOR: Descriptor = Descriptor {
    makes: Makes::Schedules { of: schedule, of_all: schedules },
    ..Descriptor::flat("double-tree", "two binary trees at once, each with half of the array", schedule)
};

fn schedule(operation: Operation, rank: Rank, ranks: usize) -> Option<Schedule> {
    (operation == Operation::AllReduce).then(|| outward(rank, ranks).there_and_back())
}

fn schedules(operation: Operation, ranks: usize) -> Vec<Schedule> {
    if operation != Operation::AllReduce {
        return Vec::new();
    }
    all_outward(ranks).into_iter().map(Schedule::there_and_back).collect()
}

/// A message from a parent to its child in one of the trees.
#[derive(Debug, Clone, Copy)]
struct Edge {
    parent: Rank,
    child: Rank,
    tree: usize,
}

/// Returns the outward half: the roots of the two trees send their chunks down.
pub fn outward(rank: Rank, ranks: usize) -> Schedule {
    let edges = edges(ranks);
    let mut steps = BTreeMap::new();
    for (edge, &time) in edges.iter().zip(&times(&edges, ranks)) {
        if edge.parent == rank {
            edge.send(&mut steps, time);
        } else if edge.child == rank {
            edge.receive(&mut steps, time);
        }
    }
    Schedule::new(2, steps.into_values())
}

/// Returns the outward halves of all ranks, rank 0 first. Each needs both whole trees; here they are built once.
pub(super) fn all_outward(ranks: usize) -> Vec<Schedule> {
    let edges = edges(ranks);
    let mut steps = vec![BTreeMap::new(); ranks];
    for (edge, &time) in edges.iter().zip(&times(&edges, ranks)) {
        edge.send(&mut steps[edge.parent], time);
        edge.receive(&mut steps[edge.child], time);
    }
    steps.into_iter().map(|steps| Schedule::new(2, steps.into_values())).collect()
}

impl Edge {
    /// Adds the parent's half of the message to the parent's steps.
    fn send(self, steps: &mut BTreeMap<usize, Step>, time: usize) {
        let step = steps.entry(time).or_default();
        *step = step.send(self.child, Chunks::one(self.tree));
    }

    /// Adds the child's half of the message to the child's steps.
    fn receive(self, steps: &mut BTreeMap<usize, Step>, time: usize) {
        let step = steps.entry(time).or_default();
        *step = step.replace(self.parent, Chunks::one(self.tree));
    }
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
        edges.extend(vertices.iter().map(|&vertex| Edge {
            parent: rank(parent(vertex, ranks)),
            child: rank(vertex),
            tree,
        }));
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
    fn schedules_made_together_equal_those_of_each_rank() {
        for ranks in 1..=40 {
            let each: Vec<_> = (0..ranks).map(|rank| outward(rank, ranks)).collect();
            assert_eq!(all_outward(ranks), each);
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
