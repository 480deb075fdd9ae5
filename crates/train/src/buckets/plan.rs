//! The layout of gradients in buckets.

use std::ops::Range;

use crate::Parameter;

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
    /// too large.
    pub(crate) fn new(parameters: &[Parameter], first_bytes: usize, bucket_bytes: usize) -> Self {
        let mut plan = Self { places: vec![None; parameters.len()], counts: Vec::new(), members: Vec::new() };
        for (index, parameter) in parameters.iter().enumerate().rev().filter(|(_, found)| found.is_trained) {
            let limit = if plan.counts.len() <= 1 { first_bytes } else { bucket_bytes } / size_of::<f32>();
            let padded = parameter.count() + Self::padding(parameter);
            if plan.counts.last().is_none_or(|&count| count > 0 && count + padded > limit) {
                plan.counts.push(0);
                plan.members.push(Vec::new());
            }
            let bucket = plan.counts.len() - 1;
            let start = plan.counts[bucket];
            plan.places[index] = Some(Place { bucket, range: start..start + parameter.count() });
            plan.counts[bucket] += padded;
            plan.members[bucket].push(index);
        }
        plan
    }

    /// Returns the unused elements after the gradient of a parameter.
    pub(crate) fn padding(parameter: &Parameter) -> usize {
        parameter.count().next_multiple_of(ALIGNMENT) - parameter.count()
    }

    /// Returns the place of the gradient of a parameter, if it is trained.
    pub fn place(&self, index: usize) -> Option<&Place> {
        self.places[index].as_ref()
    }

    pub(crate) fn trained(&self) -> impl Iterator<Item = usize> {
        (0..self.places.len()).filter(|&index| self.places[index].is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_filled_from_the_last_parameter_to_the_first() {
        let mut parameters = [10, 30, 20, 64, 3, 5].map(|count| Parameter::new(format!("{count}"), [count]));
        parameters[4].is_trained = false;
        let plan = Plan::new(&parameters, 64, 256);
        assert_eq!(plan.members, [vec![5], vec![3], vec![2, 1], vec![0]]);
        assert_eq!(plan.counts, [16, 64, 64, 16]);
        assert_eq!(plan.place(1), Some(&Place { bucket: 2, range: 32..62 }));
        assert_eq!(plan.place(4), None);
        assert!(plan.trained().eq([0, 1, 2, 3, 5]));
    }

    #[test]
    fn a_model_without_parameters_has_no_bucket() {
        assert!(Plan::new(&[], 64, 64).counts.is_empty());
    }
}
