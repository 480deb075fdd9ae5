//! Numbers at random that are the same in every run.

use std::time::Duration;

/// A small generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers that a seed gives.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of many, each of its own: a case can be drawn again without those before it.
    pub fn of(seed: u64, index: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ index);
        random.0 = random.bits();
        random
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from 0 up to, and without, `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
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
