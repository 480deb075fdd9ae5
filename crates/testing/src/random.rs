//! Reproducible random numbers.

use std::time::Duration;

use fastrand::Rng;

/// A small generator.
#[derive(Debug, Clone)]
pub struct Random(Rng);

impl Random {
    /// Returns a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// Returns one of many generators for a seed, so that a case can be repeated without the cases before it.
    pub fn of(seed: u64, index: u64) -> Self {
        Self::new(Self::new(seed).bits() ^ Self::new(index).bits())
    }

    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a number from 0 to below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// Returns true with a probability of one in this many.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// Returns a random element.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Waits for a random short time, often none.
    pub fn delay(&mut self) {
        match self.below(8) {
            0 => std::thread::sleep(Duration::from_micros(self.below(300) as u64)),
            1..3 => std::thread::yield_now(),
            _ => {}
        }
    }
}
