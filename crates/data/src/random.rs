//! Random streams that are identical on all ranks without communication.

use std::ops::RangeInclusive;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The second word of a random stream's key: its purpose.
pub(crate) const TRAIN_DIGIT: u64 = 0;
pub(crate) const TEST_DIGIT: u64 = 1;
pub(crate) const SHIFT: u64 = 2;
pub(crate) const ORDER: u64 = 3;
pub(crate) const SHUFFLE: u64 = 4;
pub(crate) const AUGMENT: u64 = 5;

/// Returns a separate random stream for each purpose and index, so that results do not depend on the order in which streams are used.
pub(crate) fn keyed_rng(seed: u64, purpose: u64, index: u64) -> ChaCha8Rng {
    rng_of([seed, purpose, index, 0])
}

pub(crate) fn rng_of(words: [u64; 4]) -> ChaCha8Rng {
    let key = words.map(u64::to_le_bytes);
    ChaCha8Rng::from_seed(key.as_flattened().try_into().expect("four words"))
}

/// A random stream for one sample in one epoch, from which a [`Transform`](crate::Transform) draws.
#[derive(Debug, Clone)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates the stream of a key.
    pub fn new(key: [u64; 4]) -> Self {
        Self(rng_of(key))
    }

    /// Draws a number from a range.
    ///
    /// # Panics
    /// If the range is empty or not finite.
    pub fn number(&mut self, range: RangeInclusive<f32>) -> f32 {
        self.0.random_range(range)
    }

    /// Draws a whole number from a range.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn whole(&mut self, range: RangeInclusive<i64>) -> i64 {
        self.0.random_range(range)
    }

    /// Draws true or false, with equal probability.
    pub fn coin(&mut self) -> bool {
        self.0.random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_every_word_of_their_key() {
        let draw = |seed, purpose, index| keyed_rng(seed, purpose, index).random::<u64>();
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        for other in [draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)] {
            assert_ne!(draw(1, 2, 3), other);
        }
    }
}
