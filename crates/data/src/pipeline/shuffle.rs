//! Shuffles elements within a buffer.

use std::iter;
use std::mem;

use rand::RngExt;

use super::epochs::Item;
use super::{DataError, Pipeline};
use crate::random::{SHUFFLE, keyed_rng};

/// Draws elements from a buffer, from this epoch on.
///
/// Once all elements of an epoch are in the buffer, elements of the next epoch replace those that are drawn. So the first element of the next epoch
/// does not wait for a full buffer.
pub(super) fn shuffled<T: Send + 'static>(
    mut elements: Pipeline<T>,
    buffer: usize,
    seed: u64,
    mut epoch: u64,
) -> impl Iterator<Item = Result<Item<T>, DataError>> + Send {
    let mut rng = keyed_rng(seed, SHUFFLE, epoch);
    // The elements in the buffer: of this epoch, and of the next.
    let mut held = [vec![], vec![]];
    // The number of ends of these two epochs that have been read. Elements after the first end belong to the next epoch.
    let mut ends = 0;
    iter::from_fn(move || {
        // Fills the buffer with elements of this epoch. After its end, replaces each drawn element by one of the next epoch.
        while ends < 2 && held.iter().map(Vec::len).sum::<usize>() < buffer {
            let of_next = ends == 1;
            match elements.next_item() {
                Some(Ok(Item::Element(element))) => held[ends].push(element),
                Some(Ok(Item::EndOfEpoch)) => ends += 1,
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
            if of_next {
                break;
            }
        }
        let [current, next] = &mut held;
        if !current.is_empty() {
            return Some(Ok(Item::Element(current.swap_remove(rng.random_range(0..current.len())))));
        }
        if ends == 0 {
            return None;
        }
        mem::swap(current, next);
        ends -= 1;
        epoch += 1;
        rng = keyed_rng(seed, SHUFFLE, epoch);
        Some(Ok(Item::EndOfEpoch))
    })
}
