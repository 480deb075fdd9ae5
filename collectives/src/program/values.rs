//! The values on which programs run: symbols to verify them, numbers to simulate them, counts to draw them.

use crate::schedule::{Chunks, Combine};
use crate::world::Rank;

pub(crate) trait Values {
    /// The value of one block of one chunk on one rank.
    type Value: Clone;

    fn reduce(&mut self, at: Event, held: &mut Self::Value, arrived: &Self::Value);

    /// Is called for each message that a rank has received, with the rank's buffer afterwards.
    fn received(&mut self, _message: Arrival, _buffer: &[Self::Value]) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) rank: Rank,
    /// The number of the rank's instruction.
    pub(crate) step: usize,
    pub(crate) combine: Combine,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The number of messages on the longest path to this one, including itself.
    pub(crate) round: usize,
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    /// The number of the receiver's instruction.
    pub(crate) step: usize,
    pub(crate) sent: Chunks,
    pub(crate) received: Chunks,
    pub(crate) combine: Combine,
}

/// Arrays that are reduced element by element.
pub(crate) struct Elementwise<'a, T>(pub(crate) &'a dyn Fn(T, T) -> T);

impl<T: Copy> Values for Elementwise<'_, T> {
    type Value = Vec<T>;

    fn reduce(&mut self, at: Event, held: &mut Vec<T>, arrived: &Vec<T>) {
        for (held, arrived) in held.iter_mut().zip(arrived) {
            let (left, right) = at.combine.operands(*held, *arrived);
            *held = (self.0)(left, right);
        }
    }
}
