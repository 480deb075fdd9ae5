//! The extent of a measurement.

use std::ops::RangeInclusive;

/// The sizes and the number of iterations of a measurement.
#[derive(Debug)]
pub(super) struct Effort {
    pub(super) max_bytes: usize,
    /// The ratio of each message size to the previous one.
    pub(super) factor: usize,
    pub(super) max_array_bytes: usize,
    /// The number of passes over all sizes. The minimum of their medians counts: other load disturbs neighbouring sizes, but rarely all
    /// passes.
    pub(super) rounds: usize,
    pub(super) warm_up: usize,
    pub(super) bytes_per_size: usize,
    /// The minimum and maximum number of iterations.
    pub(super) iterations: RangeInclusive<usize>,
}

/// The effort of `unisono tune`, which takes seconds.
pub(super) const THOROUGH: Effort = Effort {
    max_bytes: 32 << 20,
    factor: 2,
    max_array_bytes: 64 << 20,
    rounds: 3,
    warm_up: 3,
    bytes_per_size: 1 << 26,
    iterations: 15..=200,
};
/// The effort at the first use of a machine, which takes milliseconds.
#[cfg(feature = "tuning")]
pub(super) const QUICK: Effort = Effort {
    max_bytes: 8 << 20,
    factor: 4,
    max_array_bytes: 16 << 20,
    rounds: 1,
    warm_up: 1,
    bytes_per_size: 1 << 23,
    iterations: 5..=30,
};
