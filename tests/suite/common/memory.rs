//! The kinds of memory that hold the arrays of ranks.

use std::ops::{Deref, DerefMut};

use unisono::{Communicator, Element, Registered};

/// The kinds of memory that hold the arrays of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// In ordinary slices.
    Slices,
    /// In registered memory.
    Registered,
    /// Even ranks in registered memory, the others in ordinary slices.
    Mixed,
    /// In the middle of registered memory, at an offset of an odd number of elements.
    Parts,
}

impl Memory {
    pub const ALL: [Self; 4] = [Self::Slices, Self::Registered, Self::Mixed, Self::Parts];

    /// Returns an array of these elements.
    pub fn array<T: Element>(self, comm: &Communicator, elements: Vec<T>) -> Array<T> {
        let before = match self {
            Self::Slices => return Array::Slice(elements),
            Self::Mixed if !comm.rank().is_multiple_of(2) => return Array::Slice(elements),
            Self::Registered | Self::Mixed => 0,
            // A different offset on every rank.
            Self::Parts => 2 * comm.rank() + 1,
        };
        let mut all = comm.alloc(before + elements.len() + 1).unwrap();
        all[before..before + elements.len()].copy_from_slice(&elements);
        Array::Part(all, before, elements.len())
    }
}

/// An array of a rank.
pub enum Array<T> {
    Slice(Vec<T>),
    /// A part of registered memory, with its first element and its length.
    Part(Registered<T>, usize, usize),
}

impl<T: Element> Deref for Array<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Slice(slice) => slice,
            Self::Part(all, before, count) => &all[*before..before + count],
        }
    }
}

impl<T: Element> DerefMut for Array<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Slice(slice) => slice,
            Self::Part(all, before, count) => &mut all[*before..*before + *count],
        }
    }
}
