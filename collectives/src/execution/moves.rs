//! Operations that only move elements, where all ranks access all buffers: each rank copies its share, without messages.

use super::BLOCK_BYTES;
use crate::operation::Operation;
use crate::world::Rank;

/// What a rank moves in a single pass: its own part of the array, in the buffers of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    /// The number of passes, one for each block of the parts.
    pub blocks: usize,
    /// The moves of each pass, in order.
    pub moves: Vec<Move>,
    /// Whether other ranks read this rank's buffer.
    pub is_read: bool,
    /// Whether other ranks write to it.
    pub is_written: bool,
}

/// A move of this rank's part between the buffers of two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// From another rank's buffer to this one's.
    Take {
        /// The other rank.
        from: Rank,
    },
    /// From this rank's buffer to another's.
    Give {
        /// The other rank.
        to: Rank,
    },
    /// Swaps this rank's part of the other's buffer with the other's part of this one. Both ranks do it, one half each.
    Swap {
        /// The other rank.
        with: Rank,
    },
}

impl Moves {
    pub(super) fn new(operation: Operation, rank: Rank, ranks: usize, size_bytes: usize) -> Self {
        let (is_read, is_written) = match operation {
            Operation::AllGather => (false, true),
            Operation::Gather { root } => (false, rank == root),
            Operation::Scatter { root } => (rank == root, false),
            Operation::Broadcast { root } => (rank == root, rank != root),
            _ => (true, true),
        };
        let blocks = (size_bytes / ranks).div_ceil(BLOCK_BYTES).max(1);
        Self { blocks, moves: moves(operation, rank, ranks), is_read, is_written }
    }
}

fn moves(operation: Operation, rank: Rank, ranks: usize) -> Vec<Move> {
    match operation {
        // The next rank first, so that not all access the same one at once.
        Operation::AllToAll => {
            (1..ranks).map(|distance| Move::Swap { with: (rank + distance) % ranks }).collect()
        }
        Operation::Gather { root } => (rank != root).then_some(Move::Give { to: root }).into_iter().collect(),
        Operation::Scatter { root } => {
            (rank != root).then_some(Move::Take { from: root }).into_iter().collect()
        }
        operation => {
            let root = operation.root().unwrap_or(rank);
            let take = (rank != root).then_some(Move::Take { from: root });
            let others = (0..ranks).filter(|&other| other != rank && other != root);
            take.into_iter().chain(others.map(|to| Move::Give { to })).collect()
        }
    }
}
