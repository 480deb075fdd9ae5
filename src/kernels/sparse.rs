//! The largest magnitudes of an array of `f32`, as pairs of an index and a value: so many of them, or those from a threshold on.
//!
//! For so many, the threshold is found by radix selection: the magnitudes are counted by their upper bits, those in the bin of the threshold
//! by the bits that follow, and so on. Three rounds give it exactly, whatever the distribution. After the first, there are
//! most often few candidates besides those that are chosen: they are taken from the array, and what is not chosen is put back.

mod counts;

use std::cmp::Ordering;

use bytemuck::{cast_slice, cast_slice_mut};

use super::lanes::Lanes;
use super::level::{Level, Pass};
use counts::{Bits, Counts, Threshold, UPPER_BITS};

/// An element of an array.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Pair {
    /// Where it is in the array.
    pub index: u32,
    /// Its value.
    pub value: f32,
}

/// Takes the largest magnitudes of arrays that are like each other, such as the gradients of successive steps.
///
/// The smallest magnitude that was taken tells where that of the next array will be: then one pass finds those near it and above. What
/// is taken does not depend on it.
#[derive(Debug, Default)]
pub struct Largest {
    /// The smallest magnitude of the last array's; 0 if there is none.
    least: f32,
}

/// The part of the last array's smallest magnitude from which on those of the next array are looked at.
const NEAR: f32 = 0.9;

impl Largest {
    /// Adds the values to the residual, and moves the `most` largest magnitudes of the sums to `pairs`, which is cleared first: all of
    /// them if there are fewer. The values become 0.
    ///
    /// The pairs are in ascending order of indices. Of equal magnitudes, those with lower indices are chosen. In the residual, 0
    /// takes their places; the others stay.
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
        self.encode_at(Level::best(), residual, values, most, pairs)
    }

    fn encode_at(
        &mut self,
        level: Level,
        residual: &mut [f32],
        values: &mut [f32],
        most: usize,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), usize> {
        assert_indices(residual);
        pairs.clear();
        let most = most.min(residual.len());
        let near = magnitude(NEAR * self.least);
        if near == 0 || most == 0 {
            let mut counts = Counts::new();
            level.compiled::<AddAndCountAll>()(cast_slice_mut(residual), (values, &mut counts));
            find(level, counts, residual, most, pairs)?;
        } else if !finds_from(level, near, residual, values, most, pairs) {
            put_back(residual, pairs);
            let mut counts = Counts::new();
            level.compiled::<CountAll>()(cast_slice_mut(residual), &mut counts);
            find(level, counts, residual, most, pairs)?;
        }
        let least = pairs.iter().map(|pair| magnitude(pair.value)).min();
        self.least = least.map_or(0.0, f32::from_bits);
        Ok(())
    }
}

/// Adds, and takes the largest from the magnitudes that are at least this one. Returns whether there were enough, not too many, and all
/// were finite; if not, the pairs are some of the sums.
fn finds_from(
    level: Level,
    least: u32,
    residual: &mut [f32],
    values: &mut [f32],
    most: usize,
    pairs: &mut Vec<Pair>,
) -> bool {
    let limit = 4 * most + GROUP;
    pairs.reserve(limit + BLOCK);
    level.compiled::<AddAndTake>()(cast_slice_mut(residual), (values, least, limit, pairs));
    if !(most..=limit).contains(&pairs.len()) || pairs.iter().any(|pair| !pair.value.is_finite()) {
        return false;
    }
    let mut counts = Counts::new();
    pairs.iter().for_each(|pair| counts.add(pair.index as usize, pair.value, UPPER_BITS, 0));
    let (bin, place) = counts.bin_of(most);
    keep(counts.threshold_of(bin, place, pairs), residual, pairs);
    true
}

/// Takes the largest, all of which are counted.
fn find(
    level: Level,
    mut counts: Counts,
    residual: &mut [f32],
    most: usize,
    pairs: &mut Vec<Pair>,
) -> Result<(), usize> {
    if counts.any_not_finite() {
        let index = residual.iter().position(|sum| !sum.is_finite());
        return Err(index.expect("one of them was counted"));
    }
    if most == 0 {
        return Ok(());
    }
    let (bin, place) = counts.bin_of(most);
    let candidates = counts.from(bin as usize);
    if candidates <= 2 * most + GROUP {
        // The candidates are few: with them aside, the array is not read again.
        pairs.reserve(candidates);
        let all = Threshold::all_from_bin(bin);
        level.compiled::<Take>()(cast_slice_mut(residual), (all, pairs));
        keep(counts.threshold_of(bin, place, pairs), residual, pairs);
    } else {
        let threshold = counts.threshold(bin, place, |counts, bits, prefix| {
            level.compiled::<CountBin>()(cast_slice_mut(residual), (bits, prefix, counts));
        });
        pairs.reserve(most);
        level.compiled::<Take>()(cast_slice_mut(residual), (threshold, pairs));
    }
    Ok(())
}

/// Puts back all pairs that the threshold does not take.
fn keep(mut threshold: Threshold, residual: &mut [f32], pairs: &mut Vec<Pair>) {
    pairs.retain(|&Pair { index, value }| {
        let takes = threshold.takes(value);
        if !takes {
            residual[index as usize] = value;
        }
        takes
    });
}

/// Puts back all pairs.
fn put_back(residual: &mut [f32], pairs: &mut Vec<Pair>) {
    pairs.drain(..).for_each(|Pair { index, value }| residual[index as usize] = value);
}

/// Adds the values to the residual, and returns how many magnitudes of the sums are at least this one; infinity and NaN are. The
/// values become 0.
///
/// # Panics
/// If there are not as many values as the residual has.
pub fn count_from(residual: &mut [f32], values: &mut [f32], least: f32) -> usize {
    count_from_at(Level::best(), residual, values, least)
}

fn count_from_at(level: Level, residual: &mut [f32], values: &mut [f32], least: f32) -> usize {
    let mut count = 0;
    level.compiled::<AddAndCountFrom>()(cast_slice_mut(residual), (values, magnitude(least), &mut count));
    count
}

/// Moves the magnitudes that are at least this one, infinity and NaN among them, from `values` to `pairs`, which is cleared first.
///
/// The pairs are in ascending order of indices. In `values`, 0 takes their places; the others stay.
///
/// # Panics
/// As [`encode`].
pub fn encode_from(values: &mut [f32], least: f32, pairs: &mut Vec<Pair>) {
    encode_from_at(Level::best(), values, least, pairs);
}

fn encode_from_at(level: Level, values: &mut [f32], least: f32, pairs: &mut Vec<Pair>) {
    assert_indices(values);
    pairs.clear();
    let all = Threshold::all_from(magnitude(least));
    level.compiled::<Take>()(cast_slice_mut(values), (all, pairs));
}

fn assert_indices(values: &[f32]) {
    let count = values.len();
    assert!(u32::try_from(count).is_ok(), "an index has 32 bits: {count} values are too many");
}

/// Adds the values of the pairs to those at their indices.
///
/// # Panics
/// If an index is out of range. The pairs before it have been added.
pub fn decode_add(values: &mut [f32], pairs: &[Pair]) {
    let count = values.len();
    for &Pair { index, value } in pairs {
        let Some(place) = values.get_mut(index as usize) else {
            panic!("a pair's index is {index}, of {count} values");
        };
        *place += value;
    }
}

/// The sum of two sparse arrays, in place of what `sum` held: values with the same index are added, the first one's value first.
///
/// The pairs of each are in ascending order of indices, and so are those of the sum. An index is in each at most once.
pub fn merge(first: &[Pair], second: &[Pair], sum: &mut Vec<Pair>) {
    sum.clear();
    sum.reserve(first.len() + second.len());
    let (mut left, mut right) = (first, second);
    while let ([one, left_rest @ ..], [other, right_rest @ ..]) = (left, right) {
        let pair = match one.index.cmp(&other.index) {
            Ordering::Less => *one,
            Ordering::Equal => Pair { index: one.index, value: one.value + other.value },
            Ordering::Greater => *other,
        };
        if one.index <= other.index {
            left = left_rest;
        }
        if other.index <= one.index {
            right = right_rest;
        }
        sum.push(pair);
    }
    sum.extend_from_slice(left);
    sum.extend_from_slice(right);
}

/// The bits of a magnitude. As integers they are ordered as the magnitudes are, and those of infinity and NaN are larger.
const MAGNITUDE: u32 = u32::MAX >> 1;

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & MAGNITUDE
}

/// So many values are looked at together: nearly always, none of them is of interest.
const GROUP: usize = 32;

/// A bit for each value that is of interest, the lowest for the first.
///
/// Without branches, these are vector instructions.
#[inline(always)]
fn interesting(group: &[f32; GROUP], interests: impl Fn(f32) -> bool) -> u32 {
    let mut bits = 0;
    for (index, &value) in group.iter().enumerate() {
        bits |= if interests(value) { 1 << index } else { 0 };
    }
    bits
}

/// Calls the function with the place of each bit that is set, in ascending order.
#[inline(always)]
fn for_each_bit(mut bits: u32, mut function: impl FnMut(usize)) {
    while bits != 0 {
        function(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// So many sums are added before they are looked at: they stay in the core's cache in between.
const BLOCK: usize = 1024;

/// Adds values to sums, leaves zeros, and passes on the sums in blocks, with the index of the first.
#[inline(always)]
fn add(sums: &mut [u8], values: &mut [f32], mut look: impl FnMut(usize, &mut [f32])) {
    let sums: &mut [f32] = cast_slice_mut(sums);
    assert_eq!(sums.len(), values.len(), "a residual for each value");
    let blocks = sums.chunks_mut(BLOCK).zip(values.chunks_mut(BLOCK));
    for ((sums, values), start) in blocks.zip((0..).step_by(BLOCK)) {
        for (sum, value) in sums.iter_mut().zip(&*values) {
            *sum += value;
        }
        values.fill(0.0);
        look(start, sums);
    }
}

/// Adds, and counts all magnitudes by their upper bits.
struct AddAndCountAll;

impl Pass for AddAndCountAll {
    type Beside<'a> = (&'a mut [f32], &'a mut Counts);

    #[inline(always)]
    fn run<L: Lanes>(_: L, sums: &mut [u8], (values, counts): (&mut [f32], &mut Counts)) {
        add(sums, values, |_, sums| counts.add_all(sums));
    }
}

/// Counts all magnitudes by their upper bits.
struct CountAll;

impl Pass for CountAll {
    type Beside<'a> = &'a mut Counts;

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], counts: &mut Counts) {
        counts.add_all(cast_slice(values));
    }
}

/// Counts by these bits the magnitudes whose higher bits are given.
struct CountBin;

impl Pass for CountBin {
    type Beside<'a> = (Bits, u32, &'a mut Counts);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (bits, prefix, counts): (Bits, u32, &mut Counts)) {
        let values: &[f32] = cast_slice(values);
        let (groups, rest) = values.as_chunks::<GROUP>();
        for group in groups {
            for_each_bit(interesting(group, |value| bits.follow(prefix, value)), |index| {
                counts.add(index, group[index], bits, prefix);
            });
        }
        for &value in rest {
            counts.add(0, value, bits, prefix);
        }
    }
}

/// Adds, and counts the magnitudes that are at least this one.
struct AddAndCountFrom;

impl Pass for AddAndCountFrom {
    type Beside<'a> = (&'a mut [f32], u32, &'a mut usize);

    #[inline(always)]
    fn run<L: Lanes>(_: L, sums: &mut [u8], (values, least, count): (&mut [f32], u32, &mut usize)) {
        add(sums, values, |_, sums| *count += sums.iter().filter(|&&sum| magnitude(sum) >= least).count());
    }
}

/// Moves the magnitudes from the array to the pairs.
struct Take;

impl Pass for Take {
    type Beside<'a> = (Threshold, &'a mut Vec<Pair>);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (mut threshold, pairs): (Threshold, &mut Vec<Pair>)) {
        take_all(&mut threshold, 0, cast_slice_mut(values), pairs);
    }
}

/// Adds, and moves the magnitudes that are at least this one, until there are more than the limit.
struct AddAndTake;

impl Pass for AddAndTake {
    type Beside<'a> = (&'a mut [f32], u32, usize, &'a mut Vec<Pair>);

    #[inline(always)]
    fn run<L: Lanes>(
        _: L,
        sums: &mut [u8],
        (values, least, limit, pairs): (&mut [f32], u32, usize, &mut Vec<Pair>),
    ) {
        add(sums, values, |start, sums| {
            if pairs.len() <= limit {
                take_all(&mut Threshold::all_from(least), start, sums, pairs);
            }
        });
    }
}

#[inline(always)]
fn take_all(threshold: &mut Threshold, start: usize, values: &mut [f32], pairs: &mut Vec<Pair>) {
    let (groups, rest) = values.as_chunks_mut::<GROUP>();
    let start_of_rest = start + groups.len() * GROUP;
    for (group, start) in groups.iter_mut().zip((start..).step_by(GROUP)) {
        let least = threshold.least;
        for_each_bit(interesting(group, |value| magnitude(value) >= least), |index| {
            take(threshold, &mut group[index], start + index, pairs);
        });
    }
    for (value, index) in rest.iter_mut().zip(start_of_rest..) {
        take(threshold, value, index, pairs);
    }
}

#[inline(always)]
fn take(threshold: &mut Threshold, value: &mut f32, index: usize, pairs: &mut Vec<Pair>) {
    if threshold.takes(*value) {
        pairs.push(Pair { index: index as u32, value: std::mem::take(value) });
    }
}

#[cfg(test)]
mod tests;
