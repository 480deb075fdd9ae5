//! Selection of a given number of the largest magnitudes.
//!
//! The threshold is found by radix selection: the magnitudes are counted by their upper bits, those in the bin of the threshold by
//! the next lower bits, and so on. Three rounds determine it exactly, for any distribution. After the first round there are usually
//! few candidates besides the selected elements. They are moved out of the array, and the ones that are not selected are put back.

use bytemuck::cast_slice_mut;

use super::counts::{Counts, Threshold, UPPER_BITS};
use super::{
    AddAndCountAll, AddAndSelect, BLOCK, CountAll, CountBin, GROUP, Pair, Select, assert_indices, magnitude,
};
use unisono::internals::Level;

/// Selects the largest magnitudes of similar arrays, such as the gradients of successive steps.
///
/// The smallest selected magnitude predicts that of the next array, so that one pass usually suffices. The selection does not
/// depend on the prediction.
#[derive(Debug)]
pub struct Largest {
    /// The smallest magnitude selected from the last array; 0 if there was none.
    pub(super) least: f32,
    /// The fraction by which the smallest selected magnitude of the next array may be lower. With error feedback, many values are
    /// just below it.
    pub(super) margin: f32,
    pub(super) level: Level,
}

impl Default for Largest {
    fn default() -> Self {
        Self { least: 0.0, margin: WIDEST, level: Level::best() }
    }
}

const WIDEST: f32 = 0.1;

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
        assert_indices(residual);
        pairs.clear();
        let level = self.level;
        let most = most.min(residual.len());
        let near = magnitude((1.0 - self.margin) * self.least);
        if near == 0 || most == 0 {
            let mut counts = Counts::new();
            level.compiled::<AddAndCountAll>()(cast_slice_mut(residual), (values, &mut counts));
            find(level, counts, residual, most, pairs)?;
        } else if !select_from(level, near, residual, values, most, pairs) {
            let had_enough = pairs.len() >= most;
            self.margin = if had_enough { self.margin / 2.0 } else { WIDEST.min(2.0 * self.margin) };
            pairs.drain(..).for_each(|Pair { index, value }| residual[index as usize] = value);
            let mut counts = Counts::new();
            level.compiled::<CountAll>()(cast_slice_mut(residual), &mut counts);
            find(level, counts, residual, most, pairs)?;
        }
        let least = pairs.iter().map(|pair| magnitude(pair.value)).min();
        self.least = least.map_or(0.0, f32::from_bits);
        Ok(())
    }
}

/// Adds the values, and selects the largest of the magnitudes that are at least this one. Returns whether there were enough, not
/// too many, and all were finite. If not, the pairs are some of the sums.
fn select_from(
    level: Level,
    least: u32,
    residual: &mut [f32],
    values: &mut [f32],
    most: usize,
    pairs: &mut Vec<Pair>,
) -> bool {
    let limit = 4 * most + GROUP;
    pairs.reserve(limit + BLOCK);
    level.compiled::<AddAndSelect>()(cast_slice_mut(residual), (values, least, limit, pairs));
    if !(most..=limit).contains(&pairs.len()) || pairs.iter().any(|pair| !pair.value.is_finite()) {
        return false;
    }
    let mut counts = Counts::new();
    pairs.iter().for_each(|pair| counts.add(pair.index as usize, pair.value, UPPER_BITS, 0));
    let (bin, place) = counts.bin_of(most);
    keep(counts.threshold_of(bin, place, pairs), residual, pairs);
    true
}

/// Selects the largest magnitudes, of which all are counted.
fn find(
    level: Level,
    mut counts: Counts,
    residual: &mut [f32],
    most: usize,
    pairs: &mut Vec<Pair>,
) -> Result<(), usize> {
    if counts.any_not_finite() {
        let index = residual.iter().position(|sum| !sum.is_finite());
        return Err(index.expect("a non-finite value was counted"));
    }
    if most == 0 {
        return Ok(());
    }
    let (bin, place) = counts.bin_of(most);
    let candidates = counts.from(bin as usize);
    if candidates <= 2 * most + GROUP {
        // The candidates are few. Once they are moved out, the array is not read again.
        pairs.reserve(candidates);
        let all = Threshold::all_from_bin(bin);
        level.compiled::<Select>()(cast_slice_mut(residual), (all, pairs));
        keep(counts.threshold_of(bin, place, pairs), residual, pairs);
    } else {
        let threshold = counts.threshold(bin, place, |counts, bits, prefix| {
            level.compiled::<CountBin>()(cast_slice_mut(residual), (bits, prefix, counts));
        });
        pairs.reserve(most);
        level.compiled::<Select>()(cast_slice_mut(residual), (threshold, pairs));
    }
    Ok(())
}

/// Puts back all pairs that the threshold does not select.
fn keep(mut threshold: Threshold, residual: &mut [f32], pairs: &mut Vec<Pair>) {
    pairs.retain(|&Pair { index, value }| {
        let selects = threshold.selects(value);
        if !selects {
            residual[index as usize] = value;
        }
        selects
    });
}
