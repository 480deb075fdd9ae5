//! Memory that the ranks of a node share.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use super::pages::Pages;
use crate::dtype::Element;

/// An array that exists once on a node, for all its ranks, from [`crate::Communicator::alloc_shared`]
/// (`MPI_Win_allocate_shared`).
///
/// The program determines the rank that reads or writes each element at any time. [`crate::Communicator::wait_until`] and collectives
/// order the accesses.
#[derive(Debug)]
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

    /// Returns a pointer to the first element, in this rank's address space. It is aligned to a page.
    pub fn as_ptr(&self) -> *mut T {
        self.pages.as_ptr().cast()
    }

    /// Returns the elements in this range.
    ///
    /// # Safety
    /// While the slice exists, no rank may write to these elements.
    ///
    /// # Panics
    /// If the range exceeds the array.
    pub unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        self.check(&range);
        // SAFETY: the range is inside the mapping, which is aligned, and any bytes are valid elements. The caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(range.start), range.len()) }
    }

    /// Returns the elements in this range for writing.
    ///
    /// # Safety
    /// While the slice exists, no other code on any rank may read or write these elements.
    ///
    /// # Panics
    /// If the range exceeds the array.
    #[allow(
        clippy::mut_from_ref,
        reason = "other ranks access the array too, so a mutable borrow would guarantee nothing"
    )]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        self.check(&range);
        // SAFETY: as in `slice`; the caller excludes readers and writers.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(range.start), range.len()) }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} elements", self.count);
    }
}

/// Counters that ranks may change at any time. They are initially zero.
#[derive(Debug)]
pub struct SharedCounters(Shared<u64>);

impl SharedCounters {
    pub(crate) fn new(array: Shared<u64>) -> Self {
        Self(array)
    }

    /// Returns a counter.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: usize) -> &AtomicU64 {
        self.0.check(&(index..index + 1));
        // SAFETY: the counter is inside the mapping and aligned, and this array is accessed only by atomic counters.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(index)) }
    }
}
