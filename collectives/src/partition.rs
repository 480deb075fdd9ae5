//! Maps chunks to elements: the only place that divides an array.

use std::ops::Range;

use crate::schedule::Chunks;

/// An array of `count` elements, split into `chunk_count` chunks; the division is done once for many chunks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partition {
    chunk_count: usize,
    fair: usize,
    larger: usize,
}

impl Partition {
    /// # Panics
    /// If there are no chunks.
    #[inline]
    pub(crate) fn new(count: usize, chunk_count: usize) -> Self {
        assert!(chunk_count > 0, "{count} elements in no chunks");
        if chunk_count == 1 {
            // A small array often has a single chunk, and a division would take a considerable part of its time.
            return Self { chunk_count, fair: count, larger: 0 };
        }
        Self { chunk_count, fair: count / chunk_count, larger: count % chunk_count }
    }

    /// As [`chunk_start`].
    #[inline]
    pub(crate) fn start(self, chunk: usize) -> usize {
        assert!(chunk <= self.chunk_count, "chunk {chunk} of {} does not exist", self.chunk_count);
        chunk * self.fair + chunk.min(self.larger)
    }

    /// The number of elements in a range of chunks.
    pub(crate) fn count(self, chunks: Chunks) -> usize {
        self.start(chunks.end) - self.start(chunks.start)
    }

    /// The chunk of an element.
    pub(crate) fn chunk_of(self, element: usize) -> usize {
        let in_larger = self.larger * (self.fair + 1);
        if element < in_larger {
            element / (self.fair + 1)
        } else {
            self.larger + (element - in_larger) / self.fair
        }
    }
}

/// The first element of chunk `chunk` if `count` elements are split into `chunk_count` chunks.
///
/// The chunks differ by at most one element, the larger ones first; with fewer elements than chunks the last
/// chunks are empty. `chunk == chunk_count` gives the end of the array.
///
/// # Panics
/// If `chunk > chunk_count`, or there are no chunks.
pub fn chunk_start(count: usize, chunk_count: usize, chunk: usize) -> usize {
    Partition::new(count, chunk_count).start(chunk)
}

/// The elements of a range of chunks if `count` elements are split into `chunk_count` chunks.
///
/// ```
/// use unisono_collectives::{Chunks, partition::elements};
///
/// // Five elements on four ranks: 2 + 1 + 1 + 1.
/// assert_eq!(elements(5, 4, Chunks::one(0)), 0..2);
/// assert_eq!(elements(5, 4, Chunks::one(3)), 4..5);
/// assert_eq!(elements(5, 4, Chunks::new(1, 3)), 2..4);
/// ```
///
/// # Panics
/// If the range reaches past the last chunk.
#[inline]
pub fn elements(count: usize, chunk_count: usize, chunks: Chunks) -> Range<usize> {
    let partition = Partition::new(count, chunk_count);
    partition.start(chunks.start)..partition.start(chunks.end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(count: usize, chunk_count: usize) {
        let mut next = 0;
        for chunk in 0..chunk_count {
            let range = elements(count, chunk_count, Chunks::one(chunk));
            assert_eq!(range.start, next, "{count} elements in {chunk_count} chunks: chunk {chunk}");
            let fair = count / chunk_count;
            assert!((fair..=fair + 1).contains(&range.len()));
            next = range.end;
        }
        assert_eq!(next, count);
    }

    #[test]
    fn every_small_partition_is_fair_and_whole() {
        for count in 0..=70 {
            for chunk_count in 1..=70 {
                check(count, chunk_count);
            }
        }
    }

    #[test]
    fn every_element_is_in_its_chunk() {
        for (count, chunk_count) in [(1, 1), (7, 3), (9, 3), (3, 7), (70, 32)] {
            let partition = Partition::new(count, chunk_count);
            for chunk in 0..chunk_count {
                let mut elements = elements(count, chunk_count, Chunks::one(chunk));
                assert!(elements.all(|element| partition.chunk_of(element) == chunk));
            }
        }
    }

    proptest! {
        #[test]
        fn any_partition_is_fair_and_whole(count in 0..usize::MAX / 4096, chunk_count in 1..2000_usize) {
            check(count, chunk_count);
        }
    }

    #[test]
    #[should_panic(expected = "chunk 5 of 4 does not exist")]
    fn a_chunk_past_the_end_is_refused() {
        let _ = elements(10, 4, Chunks::new(3, 5));
    }
}
