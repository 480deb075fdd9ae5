//! The largest magnitudes of an array of `f32`, as pairs of an index and a value: a given number of them, or those that reach a
//! threshold.

mod largest;

use std::cmp::Ordering;
use std::iter::Zip;
use std::slice::ChunksMut;

use unisono::internals::{Level, Loop};

pub use largest::Largest;

/// An element of an array.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Pair {
    /// Its index in the array.
    pub index: u32,
    /// Its value.
    pub value: f32,
}

/// Adds the values to the residual, and returns the number of sums whose magnitude is at least this one, including infinity and
/// NaN. The values become 0.
///
/// # Panics
/// If there are not as many values as the residual has.
pub fn count_from(residual: &mut [f32], values: &mut [f32], least: f32) -> usize {
    Level::best().run(AddAndCountFrom(residual, values, magnitude(least)))
}

/// Moves the elements whose magnitude is at least this one, including infinity and NaN, from `values` to `pairs`, which is cleared
/// first.
///
/// The pairs are in ascending order of indices. In `values`, 0 replaces them, and the other elements stay.
///
/// # Panics
/// As [`Largest::encode`].
pub fn encode_from(values: &mut [f32], least: f32, pairs: &mut Vec<Pair>) {
    assert_indices(values.len());
    pairs.clear();
    let all = Threshold::all_from(magnitude(least));
    Level::best().run(Select(values, all, pairs));
}

fn assert_indices(count: usize) {
    assert!(u32::try_from(count).is_ok(), "{count} values are too many for 32-bit indices");
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

/// Replaces the contents of `sum` by the sum of two sparse arrays. Values with the same index are added, that of the first array
/// first.
///
/// The pairs of each array and of the sum are in ascending order of indices, with each index at most once.
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

/// Returns the bits of the magnitude. As integers they are ordered as the magnitudes are, and those of infinity and NaN are larger.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.abs().to_bits()
}

/// The number of values that are tested together. Nearly always, none of them is selected.
const GROUP: usize = 32;

/// Returns a bit for each selected value, the lowest for the first.
///
/// Branch-free, so that it compiles to vector instructions.
#[inline(always)]
fn matching(group: &[f32; GROUP], matches: impl Fn(f32) -> bool) -> u32 {
    let mut bits = 0;
    for (index, &value) in group.iter().enumerate() {
        bits |= if matches(value) { 1 << index } else { 0 };
    }
    bits
}

/// Calls the function with the position of each set bit, in ascending order.
#[inline(always)]
fn for_each_bit(mut bits: u32, mut function: impl FnMut(usize)) {
    while bits != 0 {
        function(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// The number of sums that are added before they are processed, so that they stay in the core's cache.
const BLOCK: usize = 1024;

/// Adds values to sums, and leaves zeros.
#[inline(always)]
fn add(sums: &mut [f32], values: &mut [f32]) {
    for (sum, value) in sums.iter_mut().zip(&*values) {
        *sum += value;
    }
    values.fill(0.0);
}

fn blocks<'a>(sums: &'a mut [f32], values: &'a mut [f32]) -> Zip<ChunksMut<'a, f32>, ChunksMut<'a, f32>> {
    assert_eq!(sums.len(), values.len(), "a residual for each value");
    sums.chunks_mut(BLOCK).zip(values.chunks_mut(BLOCK))
}

/// The rule by which elements are selected: all magnitudes above `least`, and the first few that equal it.
struct Threshold {
    least: u32,
    /// The number of magnitudes equal to it, at least one.
    equal: usize,
}

impl Threshold {
    fn all_from(least: u32) -> Self {
        Self { least, equal: usize::MAX }
    }

    /// Selects this many of the largest magnitudes, which are reordered.
    fn of_largest(magnitudes: &mut [u32], most: usize) -> Self {
        if most == 0 {
            return Self::all_from(u32::MAX);
        }
        let (_, &mut least, larger) = magnitudes.select_nth_unstable(magnitudes.len() - most);
        Self { least, equal: most - larger.iter().filter(|&&magnitude| magnitude > least).count() }
    }

    #[inline(always)]
    fn selects(&mut self, value: f32) -> bool {
        if magnitude(value) == self.least {
            self.equal -= 1;
            if self.equal == 0 {
                *self = Self::all_from(self.least + 1);
            }
            return true;
        }
        magnitude(value) > self.least
    }
}

/// Adds the values, and counts the magnitudes that are at least this one.
struct AddAndCountFrom<'a>(&'a mut [f32], &'a mut [f32], u32);

impl Loop<usize> for AddAndCountFrom<'_> {
    #[inline(always)]
    fn run(self) -> usize {
        let (mut count, least) = (0, self.2);
        for (sums, values) in blocks(self.0, self.1) {
            add(sums, values);
            count += sums.iter().filter(|&&sum| magnitude(sum) >= least).count();
        }
        count
    }
}

/// Moves the selected elements from the array to the pairs.
struct Select<'a>(&'a mut [f32], Threshold, &'a mut Vec<Pair>);

impl Loop for Select<'_> {
    #[inline(always)]
    fn run(mut self) {
        select_all(&mut self.1, 0, self.0, self.2);
    }
}

/// Adds the values, and moves the elements whose magnitude is at least this one, until there are more than the limit.
struct AddAndSelect<'a>(&'a mut [f32], &'a mut [f32], u32, usize, &'a mut Vec<Pair>);

impl Loop for AddAndSelect<'_> {
    #[inline(always)]
    fn run(self) {
        let Self(sums, values, least, limit, pairs) = self;
        for ((sums, values), start) in blocks(sums, values).zip((0..).step_by(BLOCK)) {
            add(sums, values);
            if pairs.len() <= limit {
                select_all(&mut Threshold::all_from(least), start, sums, pairs);
            }
        }
    }
}

#[inline(always)]
fn select_all(threshold: &mut Threshold, start: usize, values: &mut [f32], pairs: &mut Vec<Pair>) {
    let (groups, rest) = values.as_chunks_mut::<GROUP>();
    let start_of_rest = start + groups.len() * GROUP;
    for (group, start) in groups.iter_mut().zip((start..).step_by(GROUP)) {
        let least = threshold.least;
        for_each_bit(matching(group, |value| magnitude(value) >= least), |index| {
            select(threshold, &mut group[index], start + index, pairs);
        });
    }
    for (value, index) in rest.iter_mut().zip(start_of_rest..) {
        select(threshold, value, index, pairs);
    }
}

#[inline(always)]
fn select(threshold: &mut Threshold, value: &mut f32, index: usize, pairs: &mut Vec<Pair>) {
    if threshold.selects(*value) {
        pairs.push(Pair { index: index as u32, value: std::mem::take(value) });
    }
}

#[cfg(test)]
mod tests;
