//! How gradients are bucketed and sent.

use super::{BucketBytes, Wire};
use unisono::Communicator;

/// How gradients are bucketed and sent.
#[derive(Debug, Clone, PartialEq)]
pub struct BucketSettings {
    /// The maximum bytes of gradients in the first bucket, unless it holds a single gradient, or those of every other bucket are fewer.
    pub first_bucket_bytes: usize,
    /// The same for every other bucket.
    pub bucket_bytes: BucketBytes,
    /// The wire format of gradients.
    pub wire: Wire,
    /// Whether bucket all-reduces overlap the backward pass.
    pub overlap: Overlap,
    /// The order in which the gradients of several passes are added.
    pub order: Order,
    /// The scale of gradients on the wire as `f16`, whose greatest value is 65504: a power of
    /// two, the same on all ranks.
    pub f16_scale: f32,
    /// Whether each rank updates only [its own part](Buckets::own) of every bucket, and holds the optimizer state of that part
    /// alone. Gradients are then reduce-scattered, and updated parameters all-gathered; the bits stay the same.
    pub shard_optimizer: bool,
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: BucketBytes::Auto,
            wire: Wire::F32,
            overlap: Overlap::Auto,
            order: Order::Free,
            f16_scale: 1.0,
            shard_optimizer: false,
        }
    }
}

/// Whether bucket all-reduces overlap the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// Overlap between nodes, where the network works meanwhile. In turn where all ranks share a node: they copy and
    /// add themselves, on the cores that compute.
    Auto,
    /// On the communication thread.
    Beside,
    /// On the compute thread, which waits.
    InTurn,
}

unisono_collectives::named!(Overlap, "way to overlap");

impl Overlap {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Beside, Self::InTurn];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Beside => "beside",
            Self::InTurn => "in-turn",
        }
    }

    pub(super) fn is_beside(self, comm: &Communicator) -> bool {
        match self {
            Self::Auto => comm.topology().nodes() > 1,
            Self::Beside => true,
            Self::InTurn => false,
        }
    }
}

/// The order in which the gradients of several passes are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One pass after the other, then over ranks in the order of the fastest algorithm.
    Free,
    /// In a balanced binary tree over all passes of all ranks, so that the bits do not depend on how many ranks share
    /// the passes. The number of passes of a step must be a power of two on each rank, and so must the number of ranks.
    ///
    /// It costs memory for one copy of all gradients per level of the tree on a rank, one more pass over them
    /// for every pass but the first, and restricts the all-reduce to recursive doubling.
    Tree,
}
