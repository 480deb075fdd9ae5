//! The layout of gradients in buckets.

use std::ops::Range;

/// Gradients begin at cache lines, because a matrix product writes to them directly.
const ALIGNMENT: usize = 16;

/// The place of a gradient.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the bucket.
    pub bucket: usize,
    /// The range of its elements in the bucket.
    pub range: Range<usize>,
}

/// The assignment of gradients to buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The places by the index of the parameter; `None` for a parameter that is not trained.
    places: Vec<Option<Place>>,
    /// The number of elements of each bucket.
    pub counts: Vec<usize>,
    /// The indices of the parameters in each bucket.
    pub members: Vec<Vec<usize>>,
}

impl Plan {
    /// Assigns gradients from the last parameter to the first, the order of a backward pass. A new bucket begins when the current one would become
    /// too large. `parameters` are the numbers of elements; `None` for a parameter that is not trained. `first_bytes` is the limit of the first
    /// bucket, if it is less than that of the others.
    pub fn new(
        parameters: impl DoubleEndedIterator<Item = Option<usize>> + ExactSizeIterator,
        first_bytes: usize,
        bucket_bytes: usize,
    ) -> Self {
        let first_bytes = first_bytes.min(bucket_bytes);
        let mut plan = Self { places: vec![None; parameters.len()], counts: Vec::new(), members: Vec::new() };
        for (index, count) in parameters.enumerate().rev() {
            let Some(count) = count else { continue };
            let limit = if plan.counts.len() <= 1 { first_bytes } else { bucket_bytes } / size_of::<f32>();
            let padded = count + Self::padding(count);
            if plan.counts.last().is_none_or(|&full| full > 0 && full + padded > limit) {
                plan.counts.push(0);
                plan.members.push(Vec::new());
            }
            let bucket = plan.counts.len() - 1;
            let start = plan.counts[bucket];
            plan.places[index] = Some(Place { bucket, range: start..start + count });
            plan.counts[bucket] += padded;
            plan.members[bucket].push(index);
        }
        plan
    }

    /// Returns the number of unused elements after a gradient with this number of elements.
    pub const fn padding(count: usize) -> usize {
        count.next_multiple_of(ALIGNMENT) - count
    }

    /// Returns the place of the gradient of a parameter, if it is trained.
    pub fn place(&self, index: usize) -> Option<&Place> {
        self.places[index].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_filled_from_the_last_parameter_to_the_first() {
        let parameters = [Some(10), Some(30), Some(20), Some(64), None, Some(5)];
        let plan = Plan::new(parameters.into_iter(), 64, 256);
        assert_eq!(plan.members, [vec![5], vec![3], vec![2, 1], vec![0]]);
        assert_eq!(plan.counts, [16, 64, 64, 16]);
        assert_eq!(plan.place(1), Some(&Place { bucket: 2, range: 32..62 }));
        assert_eq!(plan.place(4), None);
    }

    #[test]
    fn limit_of_the_first_bucket_is_at_most_that_of_the_others() {
        let buckets = |first_bytes, bucket_bytes| {
            Plan::new([10, 16, 8, 2].map(Some).into_iter(), first_bytes, bucket_bytes).members.len()
        };
        assert_eq!([buckets(1, 1), buckets(1000, 1), buckets(128, 128), buckets(1000, 1000)], [4, 4, 2, 1]);
    }

    #[test]
    fn a_model_without_parameters_has_no_bucket() {
        assert!(Plan::new([].into_iter(), 64, 64).counts.is_empty());
    }
}
