//! Groups elements: the beginning of every batch.

use super::epochs::Item;
use super::{DataError, Pipeline};

/// Elements of a growing batch, and the error that ended it early.
pub(super) struct Group<T> {
    /// The number of the first, over all epochs.
    pub(super) first: u64,
    pub(super) elements: Vec<T>,
    pub(super) error: Option<DataError>,
}

/// Groups of equal size, but for the last of an epoch.
pub(super) struct Groups<T> {
    elements: Pipeline<T>,
    size: usize,
    taken: u64,
    /// Whether the epoch has ended, and the stages that follow do not know yet.
    has_ended: bool,
}

impl<T: Send + 'static> Groups<T> {
    pub(super) fn new(elements: Pipeline<T>, size: usize) -> Self {
        assert!(size > 0, "a batch has at least one element");
        Self { elements, size, taken: 0, has_ended: false }
    }
}

impl<T: Send + 'static> Iterator for Groups<T> {
    type Item = Item<Group<T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut group = Group { first: self.taken, elements: Vec::with_capacity(self.size), error: None };
        while !self.has_ended && group.elements.len() < self.size && group.error.is_none() {
            match self.elements.next_item() {
                Some(Ok(Item::Element(element))) => group.elements.push(element),
                Some(Ok(Item::EndOfEpoch)) => self.has_ended = true,
                Some(Err(error)) => group.error = Some(error),
                None => break,
            }
        }
        self.taken += group.elements.len() as u64;
        if group.error.is_some() || !group.elements.is_empty() {
            return Some(Item::Element(group));
        }
        std::mem::take(&mut self.has_ended).then_some(Item::EndOfEpoch)
    }
}
