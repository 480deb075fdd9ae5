//! How much is measured of a machine.

use std::ops::RangeInclusive;

/// How much is measured.
#[derive(Debug)]
pub(super) struct Effort {
    /// Messages of up to this size, each so many times the one before.
    pub(super) most_bytes: usize,
    pub(super) factor: usize,
    /// No array is larger.
    pub(super) most_array_bytes: usize,
    /// How often all sizes are measured, one after the other; of the medians the least counts. What else the machine
    /// does comes and goes, and so disturbs neighbouring sizes, but hardly all rounds.
    pub(super) rounds: usize,
    pub(super) warm_up: usize,
    /// How many bytes are worth sending for a size, and how often at least and at most.
    pub(super) worth_bytes: usize,
    pub(super) iterations: RangeInclusive<usize>,
}

/// That of `unisono tune`: seconds.
pub(super) const THOROUGH: Effort = Effort {
    most_bytes: 32 << 20,
    factor: 2,
    most_array_bytes: 64 << 20,
    rounds: 3,
    warm_up: 3,
    worth_bytes: 1 << 26,
    iterations: 15..=200,
};
/// That of a program which starts for the first time on a machine: milliseconds.
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
