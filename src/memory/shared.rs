//! Memory that the ranks of a node share.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::pages::Pages;
use crate::dtype::Element;

/// An array that exists once on a node, for all its ranks, from [`crate::Communicator::alloc_shared`]
/// (`MPI_Win_allocate_shared`).
///
/// The ranks agree among themselves who reads and writes which elements when; [`crate::Communicator::wait_until`] and collectives
/// order their accesses.
pub struct Shared<T> {
    pages: Pages,
    count: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Shared<T> {
    /// Returns the first `count` elements of these pages, which must hold as many.
    pub(crate) fn new(pages: Pages, count: usize) -> Self {
        assert!(count * size_of::<T>() <= pages.size_bytes(), "the pages hold fewer elements");
        Self { pages, count, elements: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the first element, wherever this rank sees it. It is aligned to a page.
    pub fn as_ptr(&self) -> *mut T {
        self.pages.as_ptr().cast()
    }

    /// Returns the elements in this range.
    ///
    /// # Safety
    /// As long as the slice exists, no rank writes to them.
    ///
    /// # Panics
    /// If the range exceeds the array.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        self.check(&range);
        // SAFETY: inside the mapping, which is aligned and holds elements, for which all bytes will do; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(range.start), range.len()) }
    }

    /// The elements in this range, to be written.
    ///
    /// # Safety
    /// As long as the slice exists, no other code, on any rank, reads them or writes to them.
    ///
    /// # Panics
    /// If the range exceeds the array.
    #[allow(
        clippy::mut_from_ref,
        reason = "other ranks have the array too: a mutable borrow would promise nothing"
    )]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        self.check(&range);
        // SAFETY: as in `slice`; the caller keeps readers and writers away.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} elements", self.count);
    }
}

/// Counters that ranks change at any time. They are initially zero.
#[derive(Debug)]
pub struct SharedCounters(Shared<u64>);

impl SharedCounters {
    pub(crate) fn new(array: Shared<u64>) -> Self {
        Self(array)
    }

    /// Returns a counter.
    ///
    /// # Panics
    /// If there are not this many.
    pub fn get(&self, index: usize) -> &AtomicU64 {
        self.0.check(&(index..index + 1));
        // SAFETY: inside the mapping, aligned, and this array is accessed only by its counters.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(index)) }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("count", &self.count).finish_non_exhaustive()
    }
}
