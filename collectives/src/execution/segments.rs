//! The segments of an array on a GPU, which follow each other through copies and messages.

use std::ops::Range;

use crate::partition;
use crate::schedule::Chunks;

/// The largest segment, so that the segments in flight fit in a few slots of pinned memory.
const MAX_BYTES: usize = 4 << 20;
/// The smallest segment of an array with several: a smaller copy takes no less time than starting it.
const MIN_BYTES: usize = 128 << 10;
/// The number of segments to aim for: the first copy down and the last copy up are not overlapped.
const MIN_SEGMENTS: usize = 4;

/// Returns the number of segments of an array, given the size of one rank's part. All ranks compute the same
/// number.
pub(super) fn count_for(size_bytes: usize) -> usize {
    let segment_bytes = (size_bytes / MIN_SEGMENTS).clamp(MIN_BYTES, MAX_BYTES);
    size_bytes.div_ceil(segment_bytes).max(1)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) number: usize,
    pub(super) of: usize,
    /// The number of elements of the array.
    pub(super) count: usize,
}

impl Segment {
    /// Returns the elements of a segment that is a range of the array. A vendor, which adds in its own order, needs contiguous
    /// elements.
    pub(super) fn whole(self) -> Range<usize> {
        partition::elements(self.count, self.of, Chunks::one(self.number))
    }

    /// Returns the elements of a segment that has its part of every chunk, as ranges in order. Every element stays in its
    /// chunk, and is reduced in the same order as in an array that is not split.
    ///
    /// The parts of all chunks, in this order, are the chunks of a smaller array.
    pub(super) fn of_each_chunk(self, chunk_count: usize) -> Vec<Range<usize>> {
        let part_of = |chunk| {
            let chunk = partition::elements(self.count, chunk_count, Chunks::one(chunk));
            let part = partition::elements(chunk.len(), self.of, Chunks::one(self.number));
            shifted(part, chunk.start)
        };
        (0..chunk_count).map(part_of).fold(Vec::new(), |mut ranges: Vec<Range<usize>>, next| {
            match ranges.last_mut() {
                _ if next.is_empty() => {}
                Some(last) if last.end == next.start => last.end = next.end,
                _ => ranges.push(next),
            }
            ranges
        })
    }
}

/// Returns a range, shifted by this many places.
pub(super) fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_arrays_stay_whole_and_large_ones_have_equal_segments() {
        assert_eq!([0, 8, 128 << 10].map(count_for), [1, 1, 1]);
        assert_eq!(count_for((128 << 10) + 1), 2);
        assert_eq!(count_for(4 << 20), 4);
        assert_eq!(count_for(64 << 20), 16);
    }

    proptest! {
        #[test]
        fn parts_of_all_chunks_are_the_chunks_of_a_segment(
            count in 0..5000_usize,
            chunk_count in 1..40_usize,
            of in 1..20_usize,
        ) {
            let mut counts = vec![0; count];
            for number in 0..of {
                let segment = Segment { number, of, count };
                let ranges = segment.of_each_chunk(chunk_count);
                let elements: Vec<_> = ranges.into_iter().flatten().collect();
                for (position, &element) in elements.iter().enumerate() {
                    counts[element] += 1;
                    let chunk_of = |count, element| {
                        let within = |&chunk: &usize| partition::elements(count, chunk_count, Chunks::one(chunk)).contains(&element);
                        (0..chunk_count).find(within)
                    };
                    prop_assert_eq!(chunk_of(elements.len(), position), chunk_of(count, element));
                }
            }
            prop_assert!(counts.iter().all(|&times| times == 1));
        }

        #[test]
        fn whole_segments_are_a_partition(count in 0..5000_usize, of in 1..20_usize) {
            let wholes = (0..of).map(|number| Segment { number, of, count }.whole());
            let end = wholes.fold(0, |next, whole| {
                assert_eq!(whole.start, next);
                whole.end
            });
            prop_assert_eq!(end, count);
        }
    }
}
