//! The extent of a measurement.

use std::ops::RangeInclusive;

use super::MIN_BYTES;
use crate::tuning::Reach;

/// The sizes and the number of iterations of a measurement.
#[derive(Debug)]
pub(super) struct Effort {
    /// The size of the largest array.
    pub(super) max_bytes: usize,
    /// The ratio of each size to the previous one; that of the largest size may be higher.
    pub(super) factor: usize,
    /// The number of passes over all sizes. The minimum of their medians counts: other load disturbs neighbouring sizes, but rarely all
    /// passes.
    pub(super) rounds: usize,
    pub(super) warm_up: usize,
    pub(super) bytes_per_size: usize,
    /// The minimum and maximum number of iterations.
    pub(super) iterations: RangeInclusive<usize>,
}

/// The largest message that is measured between nodes, where caches have no effect and such a message may take seconds.
const MAX_NETWORK_BYTES: usize = 8 << 20;

impl Effort {
    /// Returns the size of the largest array that is measured.
    pub(super) fn array_bytes(&self, reach: Reach, ranks: usize) -> usize {
        // Without shared memory, the array has a message for every rank.
        let messages = if reach.shares_memory() { 1 } else { ranks };
        self.largest_bytes(reach, ranks) * messages
    }

    /// Returns the size of the largest message that is measured.
    pub(super) fn largest_bytes(&self, reach: Reach, ranks: usize) -> usize {
        let most_bytes = if reach == Reach::Network { MAX_NETWORK_BYTES } else { self.max_bytes };
        if reach.shares_memory() {
            most_bytes
        } else {
            most_bytes.min(self.max_bytes / ranks).max(4 * MIN_BYTES)
        }
    }
}

/// The effort of `unisono tune`, which takes seconds.
pub(super) const THOROUGH: Effort = Effort {
    max_bytes: 32 << 20,
    factor: 2,
    rounds: 3,
    warm_up: 3,
    bytes_per_size: 1 << 25,
    iterations: 5..=200,
};
/// The effort at the first use of a machine, which takes milliseconds.
#[cfg(feature = "tuning")]
pub(super) const QUICK: Effort = Effort {
    max_bytes: 32 << 20,
    factor: 4,
    rounds: 1,
    warm_up: 1,
    bytes_per_size: 1 << 23,
    iterations: 5..=30,
};
