//! Selection of a given number of the largest magnitudes.
//!
//! The threshold is found by quickselect among candidates: the sums above a prediction, or those above a bound that a sample suggests.

use bytemuck::cast_slice_mut;

use super::{AddAndSelect, BLOCK, GROUP, Pair, Select, Threshold, assert_indices, magnitude};
use unisono::internals::Level;

/// Selects the largest magnitudes of similar arrays, such as the gradients of successive steps.
///
/// The smallest selected magnitude predicts that of the next array, so that one pass usually suffices. The selection does not
/// depend on the prediction.
#[derive(Debug)]
pub struct Largest {
    /// The smallest magnitude selected from the last array. Infinity if there was none, or if it was 0, which would predict that all
    /// are selected.
    pub(super) least: f32,
    /// The fraction by which the smallest selected magnitude of the next array may be lower. With error feedback, many values are
    /// just below it.
    pub(super) margin: f32,
    pub(super) level: Level,
}

impl Default for Largest {
    fn default() -> Self {
        Self { least: f32::INFINITY, margin: WIDEST, level: Level::best() }
    }
}

const WIDEST: f32 = 0.1;

/// The distance between the magnitudes of a sample: a prime number, which does not divide the sizes of layers.
const STRIDE: usize = 61;

impl Largest {
    /// Adds the values to the residual, and moves the `most` sums with the largest magnitudes (or all if there are fewer) to
    /// `pairs`, which is cleared first. The values become 0.
    ///
    /// The pairs are in ascending order of indices. Of equal magnitudes, those with lower indices are selected. In the residual, 0
    /// replaces them, and the other elements stay.
    ///
    /// # Errors
    /// The index of the first sum that is NaN or infinite. The residual has all sums, and there are no pairs.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` values, or not as many as the residual has.
    pub fn encode(
        &mut self,
        residual: &mut [f32],
        values: &mut [f32],
        most: usize,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), usize> {
        assert_indices(residual.len());
        let most = most.min(residual.len());
        let near = magnitude((1.0 - self.margin) * self.least);
        let limit = 4 * most + GROUP;
        pairs.clear();
        pairs.reserve(limit + BLOCK);
        self.level.run(AddAndSelect(residual, values, near, limit, pairs));
        // The values are 0, and serve as scratch space.
        let scratch = cast_slice_mut(values);
        let are_finite = pairs.iter().all(|pair| pair.value.is_finite());
        if are_finite && (most..=limit).contains(&pairs.len()) {
            let candidates = at_least(0, pairs.iter().map(|pair| pair.value), scratch);
            let mut threshold = Threshold::of_largest(candidates, most);
            candidates.fill(0);
            pairs.retain(|&Pair { index, value }| {
                let selects = threshold.selects(value);
                if !selects {
                    residual[index as usize] = value;
                }
                selects
            });
        } else {
            let had_enough = pairs.len() >= most;
            self.margin = if had_enough { self.margin / 2.0 } else { WIDEST.min(2.0 * self.margin) };
            pairs.drain(..).for_each(|Pair { index, value }| residual[index as usize] = value);
            let found = find(residual, scratch, most);
            scratch.fill(0);
            self.level.run(Select(residual, found?, pairs));
        }
        let least = pairs.iter().map(|pair| magnitude(pair.value)).min();
        self.least = least.filter(|&least| least > 0).map_or(f32::INFINITY, f32::from_bits);
        Ok(())
    }
}

/// Returns the threshold, or the index of the first sum that is not finite.
fn find(sums: &[f32], scratch: &mut [u32], most: usize) -> Result<Threshold, usize> {
    let all = sums.iter().copied();
    let sample = at_least(0, all.clone().step_by(STRIDE), scratch);
    // Twice as many as expected, since the sample may not be typical.
    let bound = Threshold::of_largest(sample, (2 * most / STRIDE + GROUP).min(sample.len())).least;
    let mut candidates = at_least(bound, all.clone(), scratch);
    if candidates.len() < most {
        candidates = at_least(0, all.clone(), scratch);
    }
    let is_finite = |&magnitude: &u32| magnitude < f32::INFINITY.to_bits();
    if candidates.iter().all(is_finite) {
        return Ok(Threshold::of_largest(candidates, most));
    }
    Err(sums.iter().position(|sum| !sum.is_finite()).expect("a candidate is not finite"))
}

/// Stores the magnitudes that are at least this one, and returns them.
fn at_least(least: u32, values: impl Iterator<Item = f32>, scratch: &mut [u32]) -> &mut [u32] {
    let mut count = 0;
    for magnitude in values.map(magnitude) {
        // Without a branch, which would often be mispredicted.
        scratch[count] = magnitude;
        count += usize::from(magnitude >= least);
    }
    &mut scratch[..count]
}
