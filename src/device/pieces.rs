//! An array on a GPU, cut into pieces that follow each other through copies and messages.

use std::ops::Range;

use unisono_collectives::{Chunks, partition};

/// How many pieces come down while the host works on one.
pub(super) const AHEAD: usize = 2;
/// One for each of those, for the one with the host, and for the one that goes up.
pub(super) const SLOTS: usize = AHEAD + 2;

/// A piece is not larger, so that what is under way at a time fits into a few chunks of pinned memory.
const MOST_BYTES: usize = 4 << 20;
/// Nor smaller, where there are several: below, a copy takes as long as it takes to begin it.
const LEAST_BYTES: usize = 128 << 10;
/// As many are wished for at least: what is not overlapped is the first one's way down and the last one's way up.
const WISHED: usize = 4;

/// In how many pieces an array is best cut of which one rank's part is so large. All ranks come to the same number.
pub(crate) fn count_for(size_bytes: usize) -> usize {
    let piece_bytes = (size_bytes / WISHED).clamp(LEAST_BYTES, MOST_BYTES);
    size_bytes.div_ceil(piece_bytes).max(1)
}

/// One of the pieces of an array, for the ranks of a plan of so many chunks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// The number of the piece, and of how many.
    pub(super) number: usize,
    pub(super) of: usize,
    /// The number of elements of the array.
    pub(super) count: usize,
}

impl Piece {
    /// Where its elements lie, if it is cut off as a whole: so that a vendor, who adds up in an order of its own, finds them in one
    /// place.
    pub(super) fn whole(self) -> Range<usize> {
        partition::elements(self.count, self.of, Chunks::one(self.number))
    }

    /// Where its elements lie, one range after the other, if it has its part of each chunk: so that every element stays in its
    /// chunk, and is added up in the same order as in an array that is not cut.
    ///
    /// The parts of all chunks, in this order, are the chunks of an array of their own.
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

/// A range, so many places further on.
pub(super) fn shifted(range: Range<usize>, by: usize) -> Range<usize> {
    range.start + by..range.end + by
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_arrays_stay_whole_and_large_ones_come_in_equal_pieces() {
        assert_eq!([0, 8, 128 << 10].map(count_for), [1, 1, 1]);
        assert_eq!(count_for((128 << 10) + 1), 2);
        assert_eq!(count_for(4 << 20), 4);
        assert_eq!(count_for(64 << 20), 16);
    }

    proptest! {
        #[test]
        fn the_parts_of_all_chunks_are_chunks_of_their_own(
            count in 0..5000_usize,
            chunk_count in 1..40_usize,
            of in 1..20_usize,
        ) {
            let mut seen = vec![0; count];
            for number in 0..of {
                let piece = Piece { number, of, count };
                let ranges = piece.of_each_chunk(chunk_count);
                let elements: Vec<_> = ranges.into_iter().flatten().collect();
                for (position, &element) in elements.iter().enumerate() {
                    seen[element] += 1;
                    let chunk_of = |count, element| {
                        let within = |&chunk: &usize| partition::elements(count, chunk_count, Chunks::one(chunk)).contains(&element);
                        (0..chunk_count).find(within)
                    };
                    prop_assert_eq!(chunk_of(elements.len(), position), chunk_of(count, element));
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }

        #[test]
        fn whole_pieces_are_a_partition(count in 0..5000_usize, of in 1..20_usize) {
            let wholes = (0..of).map(|number| Piece { number, of, count }.whole());
            let end = wholes.fold(0, |next, whole| {
                assert_eq!(whole.start, next);
                whole.end
            });
            prop_assert_eq!(end, count);
        }
    }
}
