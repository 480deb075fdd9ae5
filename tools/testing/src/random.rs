//! Numbers at random that are the same in every run.

use std::time::Duration;

use fastrand::Rng;

/// A small generator.
#[derive(Debug, Clone)]
pub struct Random(Rng);

impl Random {
    /// The numbers that a seed gives.
    pub fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// One of many, each of its own: a case can be drawn again without those before it.
    pub fn of(seed: u64, index: u64) -> Self {
        Self::new(Self::new(seed).bits() ^ Self::new(index).bits())
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number from 0 up to, and without, `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end)
    }

    /// Whether something happens that happens once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Nothing, or a little while.
    pub fn delay(&mut self) {
        match self.below(8) {
            0 => std::thread::sleep(Duration::from_micros(self.below(300) as u64)),
            1..3 => std::thread::yield_now(),
            _ => {}
        }
    }
}
