//! The extent of a measurement.

use std::ops::RangeInclusive;

/// The sizes and the number of iterations of a measurement.
#[derive(Debug)]
pub(super) struct Effort {
    /// Messages of up to this size, each this many times the one before.
    pub(super) most_bytes: usize,
    pub(super) factor: usize,
    /// No array is larger.
    pub(super) most_array_bytes: usize,
    /// The number of passes over all sizes, of whose medians the minimum counts: other load disturbs neighbouring sizes, but hardly all
    /// passes.
    pub(super) rounds: usize,
    pub(super) warm_up: usize,
    /// The number of bytes to send for each size, and the minimum and maximum number of iterations.
    pub(super) worth_bytes: usize,
    pub(super) iterations: RangeInclusive<usize>,
}

/// The effort of `unisono tune`: seconds.
pub(super) const THOROUGH: Effort = Effort {
    most_bytes: 32 << 20,
    factor: 2,
    most_array_bytes: 64 << 20,
    rounds: 3,
    warm_up: 3,
    worth_bytes: 1 << 26,
    iterations: 15..=200,
};
/// The effort at the first use of a machine: milliseconds.
#[cfg(feature = "tuning")]
pub(super) const QUICK: Effort = Effort {
    most_bytes: 8 << 20,
    factor: 4,
    most_array_bytes: 16 << 20,
    rounds: 1,
    warm_up: 1,
    worth_bytes: 1 << 23,
    iterations: 5..=30,
};
