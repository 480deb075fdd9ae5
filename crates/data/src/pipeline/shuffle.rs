//! Shuffles elements within a buffer.

use std::mem;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::epochs::Item;
use super::{DataError, Pipeline};
use crate::random::{SHUFFLE, keyed_rng};

/// A buffer of elements, one of which is drawn each time.
///
/// Once all elements of an epoch are in it, elements of the next take the place of those that are drawn: so the first element of
/// the next epoch need not wait for a whole buffer.
pub(super) struct Shuffle<T> {
    elements: Pipeline<T>,
    buffer: usize,
    seed: u64,
    epoch: u64,
    rng: ChaCha8Rng,
    current: Held<T>,
    next: Held<T>,
}

/// The elements of an epoch that are in the buffer.
struct Held<T> {
    elements: Vec<T>,
    rest: Rest,
}

/// The remaining entries of an epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// More elements.
    Elements,
    /// Its end.
    End,
    /// The end of the pipeline.
    Nothing,
}

impl<T: Send + 'static> Shuffle<T> {
    pub(super) fn new(elements: Pipeline<T>, buffer: usize, seed: u64, epoch: u64) -> Self {
        let rng = keyed_rng(seed, SHUFFLE, epoch);
        Self { elements, buffer, seed, epoch, rng, current: Held::new(), next: Held::new() }
    }

    /// Fills the buffer: with the elements of this epoch, or else with one of the next, for the one that was drawn.
    fn fill(&mut self) -> Result<(), DataError> {
        while self.current.rest == Rest::Elements && self.current.elements.len() < self.buffer {
            self.current.take(&mut self.elements)?;
        }
        let held = self.current.elements.len() + self.next.elements.len();
        let is_next = self.current.rest == Rest::End && self.next.rest == Rest::Elements;
        if is_next && held < self.buffer {
            self.next.take(&mut self.elements)?;
        }
        Ok(())
    }
}

impl<T: Send + 'static> Held<T> {
    fn new() -> Self {
        Self { elements: Vec::new(), rest: Rest::Elements }
    }

    fn take(&mut self, from: &mut Pipeline<T>) -> Result<(), DataError> {
        match from.next_item().transpose()? {
            Some(Item::Element(element)) => self.elements.push(element),
            Some(Item::EndOfEpoch) => self.rest = Rest::End,
            None => self.rest = Rest::Nothing,
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
        let held = &mut self.current.elements;
        if held.is_empty() {
            if self.current.rest == Rest::Nothing {
                return None;
            }
            self.current = mem::replace(&mut self.next, Held::new());
            self.epoch += 1;
            self.rng = keyed_rng(self.seed, SHUFFLE, self.epoch);
            return Some(Ok(Item::EndOfEpoch));
        }
        Some(Ok(Item::Element(held.swap_remove(self.rng.random_range(0..held.len())))))
    }
}
