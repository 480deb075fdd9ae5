//! Shuffles elements within a buffer.

use std::mem;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::epochs::Item;
use super::{DataError, Pipeline};
use crate::random::{SHUFFLE, keyed_rng};

/// A buffer of elements, one of which is drawn each time.
/// Once all elements of an epoch are in it, elements of the next epoch replace those that are drawn. So the first element of the next epoch does not
/// wait for a full buffer.
pub(super) struct Shuffle<T> {
    elements: Pipeline<T>,
    buffer: usize,
    seed: u64,
    epoch: u64,
    rng: ChaCha8Rng,
    /// The elements in the buffer: of this epoch, and of the next.
    held: [Vec<T>; 2],
    /// The number of ends of these two epochs that have been read. Elements after the first end belong to the next epoch.
    ends: usize,
    is_over: bool,
}

impl<T: Send + 'static> Shuffle<T> {
    pub(super) fn new(elements: Pipeline<T>, buffer: usize, seed: u64, epoch: u64) -> Self {
        let rng = keyed_rng(seed, SHUFFLE, epoch);
        Self { elements, buffer, seed, epoch, rng, held: [vec![], vec![]], ends: 0, is_over: false }
    }

    /// Fills the buffer with the elements of this epoch. After its end, replaces each drawn element by one of the next epoch.
    fn fill(&mut self) -> Result<(), DataError> {
        while self.ends < 2 && !self.is_over && self.held.iter().map(Vec::len).sum::<usize>() < self.buffer {
            let epoch = self.ends;
            match self.elements.next_item().transpose()? {
                Some(Item::Element(element)) => self.held[epoch].push(element),
                Some(Item::EndOfEpoch) => self.ends += 1,
                None => self.is_over = true,
            }
            if epoch == 1 {
                break;
            }
        }
        Ok(())
    }
}

impl<T: Send + 'static> Iterator for Shuffle<T> {
    type Item = Result<Item<T>, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            return Some(Err(error));
        }
        let [current, next] = &mut self.held;
        if current.is_empty() {
            if self.ends == 0 {
                return None;
            }
            mem::swap(current, next);
            self.ends -= 1;
            self.epoch += 1;
            self.rng = keyed_rng(self.seed, SHUFFLE, self.epoch);
            return Some(Ok(Item::EndOfEpoch));
        }
        Some(Ok(Item::Element(current.swap_remove(self.rng.random_range(0..current.len())))))
    }
}
