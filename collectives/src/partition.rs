//! Maps chunks to elements: the only place that divides an array.

use std::ops::Range;
use std::sync::Arc;

use crate::schedule::Chunks;

/// The division of an array into chunks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Partition {
    /// Chunks that differ by at most one element, the larger ones first.
    Fair {
        /// The number of chunks.
        chunk_count: usize,
        /// The number of elements of a smaller chunk.
        fair: usize,
        /// The number of chunks with one element more.
        larger: usize,
    },
    /// Chunks of given sizes.
    Given {
        /// The first element of each chunk, and the number of elements of the array.
        starts: Arc<[usize]>,
    },
}

impl Partition {
    /// Returns the division of `count` elements into `chunk_count` chunks. They differ by at most one element, the larger ones first. With
    /// fewer elements than chunks, the last chunks are empty.
    ///
    /// # Panics
    /// If there are no chunks.
    #[inline]
    pub fn fair(count: usize, chunk_count: usize) -> Self {
        assert!(chunk_count > 0, "{count} elements in no chunks");
        if chunk_count == 1 {
            // A small array often has a single chunk, and a division would take a considerable part of its time.
            return Self::Fair { chunk_count, fair: count, larger: 0 };
        }
        Self::Fair { chunk_count, fair: count / chunk_count, larger: count % chunk_count }
    }

    /// Returns the division into chunks of these numbers of elements.
    ///
    /// ```
    /// use unisono_collectives::Chunks;
    /// use unisono_collectives::partition::Partition;
    ///
    /// let partition = Partition::given(&[3, 0, 5]);
    /// assert_eq!(partition.elements(Chunks::one(2)), 3..8);
    /// assert_eq!(partition.elements(Chunks::new(0, 2)), 0..3);
    /// ```
    ///
    /// # Panics
    /// If the sum of the counts overflows `usize`.
    pub fn given(counts: &[usize]) -> Self {
        let next = |start: &mut usize, &count: &usize| {
            *start = start.checked_add(count).expect("an array has at most `usize::MAX` elements");
            Some(*start)
        };
        let starts = std::iter::once(0).chain(counts.iter().scan(0, next)).collect();
        Self::Given { starts }
    }

    /// Returns the number of chunks.
    pub fn chunk_count(&self) -> usize {
        match self {
            Self::Fair { chunk_count, .. } => *chunk_count,
            Self::Given { starts } => starts.len() - 1,
        }
    }

    /// Returns the first element of a chunk; for `chunk == chunk_count`, the number of elements of the array.
    ///
    /// # Panics
    /// If `chunk > chunk_count`.
    #[inline]
    pub fn start(&self, chunk: usize) -> usize {
        match self {
            Self::Fair { chunk_count, fair, larger } => {
                assert!(chunk <= *chunk_count, "chunk {chunk} of {chunk_count} does not exist");
                chunk * fair + chunk.min(*larger)
            }
            Self::Given { starts } => starts[chunk],
        }
    }

    /// Returns the elements of a range of chunks.
    ///
    /// # Panics
    /// If the range reaches past the last chunk.
    #[inline]
    pub fn elements(&self, chunks: Chunks) -> Range<usize> {
        self.start(chunks.start)..self.start(chunks.end)
    }

    /// Returns the number of elements of the largest chunk.
    pub fn largest(&self) -> usize {
        match self {
            Self::Fair { fair, larger, .. } => fair + usize::from(*larger > 0),
            Self::Given { starts } => starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0),
        }
    }

    pub(crate) fn chunk_of(&self, element: usize) -> usize {
        match self {
            Self::Fair { fair, larger, .. } => {
                let in_larger = larger * (fair + 1);
                if element < in_larger { element / (fair + 1) } else { larger + (element - in_larger) / fair }
            }
            Self::Given { starts } => starts.partition_point(|&start| start <= element) - 1,
        }
    }
}

/// Returns the elements of a range of chunks if `count` elements are split into `chunk_count` chunks.
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
    Partition::fair(count, chunk_count).elements(chunks)
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
    fn every_small_partition_is_fair_and_complete() {
        for count in 0..=70 {
            for chunk_count in 1..=70 {
                check(count, chunk_count);
            }
        }
    }

    #[test]
    fn every_element_is_in_its_chunk() {
        let fair = [(1, 1), (7, 3), (9, 3), (3, 7), (70, 32)];
        let fair = fair.map(|(count, chunk_count)| Partition::fair(count, chunk_count));
        let given: [&[usize]; 4] = [&[0], &[3, 0, 5], &[0, 0, 2, 0], &[1; 9]];
        for partition in fair.into_iter().chain(given.map(Partition::given)) {
            for chunk in 0..partition.chunk_count() {
                let mut elements = partition.elements(Chunks::one(chunk));
                assert!(elements.all(|element| partition.chunk_of(element) == chunk), "{partition:?}");
            }
        }
    }

    #[test]
    fn given_chunks_have_the_given_sizes() {
        let counts = [3, 0, 5, 0];
        let partition = Partition::given(&counts);
        let sizes: Vec<_> = (0..4).map(|chunk| partition.elements(Chunks::one(chunk)).len()).collect();
        assert_eq!((sizes, partition.largest(), partition.start(4)), (counts.to_vec(), 5, 8));
        assert_eq!(Partition::fair(9, 4).largest(), 3);
    }

    proptest! {
        #[test]
        fn any_partition_is_fair_and_complete(count in 0..usize::MAX / 4096, chunk_count in 1..2000_usize) {
            check(count, chunk_count);
        }
    }

    #[test]
    #[should_panic(expected = "chunk 5 of 4 does not exist")]
    fn a_chunk_past_the_end_is_refused() {
        let _ = elements(10, 4, Chunks::new(3, 5));
    }
}
