//! The collective operations and their results.

use std::fmt;

use crate::world::Rank;

/// A collective operation.
///
/// All work in place on one buffer of the same length on every rank. A rank's *own part* is chunk `r` of the buffer, split
/// into as many chunks as there are ranks ([`crate::partition`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every rank ends with the reduction of all buffers.
    AllReduce,
    /// Every rank ends with its own part of the reduction; the rest of its buffer is undefined.
    ReduceScatter,
    /// Every rank contributes its own part and ends with all parts.
    AllGather,
    /// Every rank ends with the root's buffer.
    Broadcast {
        /// The rank that has the values.
        root: Rank,
    },
    /// The root ends with the reduction of all buffers; the other buffers are undefined.
    Reduce {
        /// The rank that receives the result.
        root: Rank,
    },
    /// Every rank contributes its own part; the root ends with all parts.
    Gather {
        /// The rank that receives the parts.
        root: Rank,
    },
    /// Every rank ends with its own part of the root's buffer; the rest of its buffer is undefined, except on the root.
    Scatter {
        /// The rank that has the parts.
        root: Rank,
    },
    /// Part `j` of rank `i` becomes part `i` of rank `j`.
    AllToAll,
    /// Every rank ends with the reduction of the buffers of all ranks up to and including itself.
    Scan,
    /// Every rank ends with the reduction of the buffers of all ranks before itself; rank 0's buffer is undefined.
    ExclusiveScan,
}

impl Operation {
    /// Returns all operations, with this root if they have one.
    pub const fn all(root: Rank) -> [Self; 10] {
        [
            Self::AllReduce,
            Self::ReduceScatter,
            Self::AllGather,
            Self::Broadcast { root },
            Self::Reduce { root },
            Self::Gather { root },
            Self::Scatter { root },
            Self::AllToAll,
            Self::Scan,
            Self::ExclusiveScan,
        ]
    }

    /// Returns the name of the operation, without its root.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::AllToAll => "all-to-all",
            Self::Scan => "scan",
            Self::ExclusiveScan => "exclusive-scan",
        }
    }

    /// Returns the root, if the operation has one.
    pub fn root(self) -> Option<Rank> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            Self::AllReduce
            | Self::ReduceScatter
            | Self::AllGather
            | Self::AllToAll
            | Self::Scan
            | Self::ExclusiveScan => None,
        }
    }

    /// Returns whether a rank's buffer has defined contents in this chunk before the first step.
    pub(crate) fn begins_with(self, rank: Rank, chunk: usize) -> bool {
        match self {
            Self::AllReduce
            | Self::ReduceScatter
            | Self::Reduce { .. }
            | Self::AllToAll
            | Self::Scan
            | Self::ExclusiveScan => true,
            Self::AllGather | Self::Gather { .. } => chunk == rank,
            Self::Broadcast { root } | Self::Scatter { root } => rank == root,
        }
    }

    /// Returns whether every rank contributes or receives its own part, whose size may be given.
    pub fn has_parts(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllGather | Self::Gather { .. } | Self::Scatter { .. })
    }

    /// Returns the ratio of bus bandwidth to array bandwidth, by the definitions of nccl-tests.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Self::AllToAll => (ranks - 1.0) / ranks,
            _ if self.has_parts() => (ranks - 1.0) / ranks,
            _ => 1.0,
        }
    }

    /// Returns whether values are reduced, rather than only moved.
    pub fn reduces(self) -> bool {
        matches!(
            self,
            Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. } | Self::Scan | Self::ExclusiveScan
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
