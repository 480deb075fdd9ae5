//! Groups elements into batches.

use std::iter;
use std::mem;

use super::epochs::Item;
use super::{DataError, Pipeline};

/// The elements of a growing batch, and the error that ended it early.
pub(super) struct Group<T> {
    /// The number of the first, over all epochs.
    pub(super) first: u64,
    pub(super) elements: Vec<T>,
    pub(super) error: Option<DataError>,
}

/// Yields groups of equal size, except for the last one of an epoch.
pub(super) fn groups<T: Send + 'static>(
    mut elements: Pipeline<T>,
    size: usize,
) -> impl Iterator<Item = Item<Group<T>>> + Send {
    assert!(size > 0, "a batch has at least one element");
    // `has_ended` is set from the end of an epoch until that end is forwarded.
    let (mut first, mut has_ended) = (0, false);
    iter::from_fn(move || {
        let mut group = Group { first, elements: Vec::with_capacity(size), error: None };
        while !has_ended && group.elements.len() < size && group.error.is_none() {
            match elements.next_item() {
                Some(Ok(Item::Element(element))) => group.elements.push(element),
                Some(Ok(Item::EndOfEpoch)) => has_ended = true,
                Some(Err(error)) => group.error = Some(error),
                None => break,
            }
        }
        first += group.elements.len() as u64;
        if group.error.is_some() || !group.elements.is_empty() {
            return Some(Item::Element(group));
        }
        mem::take(&mut has_ended).then_some(Item::EndOfEpoch)
    })
}
