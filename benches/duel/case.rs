//! The cases: an operation on arrays of a size, in place or not, warm or written.

use clap::ValueEnum;
use serde::Serialize;

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    AllReduce,
    AllToAll,
    Broadcast,
    AllGather,
    Gather,
    Barrier,
}

/// The place of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// In the input array.
    InPlace,
    /// In another array: one call for MPI, a copy and a call for Unisono.
    OutOfPlace,
}

/// The work between two calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// No work.
    Warm,
    /// Every rank writes its array.
    Written,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) place: Place,
    pub(crate) state: State,
    /// The size of each rank's array; 0 for a barrier.
    pub(crate) size_bytes: usize,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllToAll => "all-to-all",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
            Self::Gather => "gather",
            Self::Barrier => "barrier",
        }
    }

    /// Returns the possible places: broadcasts, gathers and barriers have only one.
    pub(crate) fn places(self) -> impl Iterator<Item = Place> {
        let has_one = matches!(self, Self::Broadcast | Self::Gather | Self::Barrier);
        [Place::InPlace, Place::OutOfPlace].into_iter().take(if has_one { 1 } else { 2 })
    }

    /// Returns the default sizes.
    pub(crate) fn usual_sizes(self) -> &'static [usize] {
        const ALL_REDUCE: [usize; 14] = {
            // From 8 bytes to 128 MiB in steps of four; then 256 MiB.
            let mut sizes = [8; 14];
            let mut at = 1;
            while at < 13 {
                sizes[at] = 4 * sizes[at - 1];
                at += 1;
            }
            sizes[13] = 256 << 20;
            sizes
        };
        match self {
            Self::AllReduce => &ALL_REDUCE,
            _ => &[8, 8 << 10, 1 << 20, 32 << 20],
        }
    }
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InPlace => "in place",
            Self::OutOfPlace => "out of place",
        }
    }
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Written => "written between calls",
        }
    }
}
