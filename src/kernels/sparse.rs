//! The largest magnitudes of an array of `f32`, as pairs of an index and a value: so many of them, or those from a threshold on.
//!
//! For so many, the threshold is found by radix selection: the magnitudes are counted by their upper bits, those in the bin of the threshold
//! by the bits that follow, and so on. Three rounds give it exactly, whatever the distribution. After the first, there are
//! most often few candidates besides those that are chosen: they are taken from the array, and what is not chosen is put back.

use std::cmp::Ordering;

use bytemuck::{cast_slice, cast_slice_mut};

use super::lanes::Lanes;
use super::level::{Level, Pass};

/// An element of an array.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Pair {
    /// Where it is in the array.
    pub index: u32,
    /// Its value.
    pub value: f32,
}

/// Moves the `most` largest magnitudes from `values` to `pairs`, which is cleared first: all values if there are fewer.
///
/// The pairs are in ascending order of indices. Of equal magnitudes, those with lower indices are chosen. In `values`, 0
/// takes their places; the others stay.
///
/// # Errors
/// The index of the first value that is NaN or infinite. `values` is unchanged, and there are no pairs.
///
/// # Panics
/// If there are more than `u32::MAX` values.
pub fn encode(values: &mut [f32], most: usize, pairs: &mut Vec<Pair>) -> Result<(), usize> {
    encode_at(Level::best(), values, most, pairs)
}

fn encode_at(level: Level, values: &mut [f32], most: usize, pairs: &mut Vec<Pair>) -> Result<(), usize> {
    assert_indices(values);
    pairs.clear();
    let mut counts = Counts::new();
    level.compiled::<CountAll>()(cast_slice_mut(values), &mut counts);
    if counts.from((INFINITY >> UPPER) as usize) > 0 {
        let index = values.iter().position(|value| !value.is_finite());
        return Err(index.expect("one of them was counted"));
    }
    let most = most.min(values.len());
    if most == 0 {
        return Ok(());
    }
    let (bin, place) = counts.bin_of(most);
    let candidates = counts.from(bin as usize);
    if candidates <= 2 * most + GROUP {
        // The candidates are few: with them aside, the array is not read again.
        pairs.reserve(candidates);
        let all = Threshold { least: bin << UPPER, equal: usize::MAX };
        level.compiled::<Take>()(cast_slice_mut(values), (all, pairs));
        let mut threshold = counts.threshold(bin, place, |counts, bits, prefix| {
            pairs.iter().for_each(|pair| counts.add(pair.index as usize, pair.value, bits, prefix));
        });
        pairs.retain(|&Pair { index, value }| {
            let takes = threshold.takes(value);
            if !takes {
                values[index as usize] = value;
            }
            takes
        });
    } else {
        let threshold = counts.threshold(bin, place, |counts, bits, prefix| {
            level.compiled::<CountBin>()(cast_slice_mut(values), (bits, prefix, counts));
        });
        pairs.reserve(most);
        level.compiled::<Take>()(cast_slice_mut(values), (threshold, pairs));
    }
    Ok(())
}

/// How many magnitudes are at least this one; infinity and NaN are.
pub fn count_from(values: &mut [f32], least: f32) -> usize {
    count_from_at(Level::best(), values, least)
}

fn count_from_at(level: Level, values: &mut [f32], least: f32) -> usize {
    let mut count = 0;
    level.compiled::<CountFrom>()(cast_slice_mut(values), (magnitude(least), &mut count));
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
    let all = Threshold { least: magnitude(least), equal: usize::MAX };
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

const INFINITY: u32 = f32::INFINITY.to_bits();

/// The bits below those that are counted first: what is counted is the exponent and three bits of the fraction.
const UPPER: u32 = 20;

const BINS: usize = 1 << (u32::BITS - 1 - UPPER);

/// Bits of a magnitude: where they begin, and how many they are.
#[derive(Debug, Clone, Copy)]
struct Bits {
    from: u32,
    count: u32,
}

impl Bits {
    /// Whether the bits above these are the prefix.
    #[inline(always)]
    fn follow(self, prefix: u32, value: f32) -> bool {
        magnitude(value) >> (self.from + self.count) == prefix
    }
}

const MIDDLE: Bits = Bits { from: 10, count: 10 };
const LOWER: Bits = Bits { from: 0, count: 10 };

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

/// So many neighbours are counted in different tables: an increment need not wait for the one before.
const TABLES: usize = 4;

/// How many magnitudes there are in each bin.
struct Counts([[u32; BINS]; TABLES]);

impl Counts {
    fn new() -> Self {
        Self([[0; BINS]; TABLES])
    }

    fn clear(&mut self) {
        *self = Self::new();
    }

    fn of(&self, bin: usize) -> usize {
        self.0.iter().map(|table| table[bin] as usize).sum()
    }

    /// How many are in this bin and in those above it.
    fn from(&self, bin: usize) -> usize {
        (bin..BINS).map(|bin| self.of(bin)).sum()
    }

    /// Counts a magnitude by these bits, if the bits above them are the prefix.
    #[inline(always)]
    fn add(&mut self, index: usize, value: f32, bits: Bits, prefix: u32) {
        if bits.follow(prefix, value) {
            let bin = magnitude(value) >> bits.from & ((1 << bits.count) - 1);
            self.0[index % TABLES][bin as usize % BINS] += 1;
        }
    }

    /// The magnitude that is in this place of the bin of upper bits. `count` adds the magnitudes by the bits that it is given.
    fn threshold(
        &mut self,
        bin: u32,
        place: usize,
        mut count: impl FnMut(&mut Self, Bits, u32),
    ) -> Threshold {
        let (mut least, mut equal) = (bin, place);
        for bits in [MIDDLE, LOWER] {
            self.clear();
            count(self, bits, least);
            let (bin, place) = self.bin_of(equal);
            (least, equal) = (least << bits.count | bin, place);
        }
        Threshold { least, equal }
    }

    /// The bin of the magnitude that is in this place, counted from 1 at the largest; and its place within the bin.
    fn bin_of(&self, mut place: usize) -> (u32, usize) {
        for bin in (0..BINS).rev() {
            let count = self.of(bin);
            if place <= count {
                return (bin as u32, place);
            }
            place -= count;
        }
        unreachable!("as many were counted");
    }
}

/// Counts all magnitudes by their upper bits.
struct CountAll;

impl Pass for CountAll {
    type Beside<'a> = &'a mut Counts;

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], Counts(tables): &mut Counts) {
        let values: &[f32] = cast_slice(values);
        let (groups, rest) = values.as_chunks::<TABLES>();
        for group in groups {
            for (table, &value) in tables.iter_mut().zip(group) {
                table[(magnitude(value) >> UPPER) as usize] += 1;
            }
        }
        for &value in rest {
            tables[0][(magnitude(value) >> UPPER) as usize] += 1;
        }
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

/// Counts the magnitudes that are at least this one.
struct CountFrom;

impl Pass for CountFrom {
    type Beside<'a> = (u32, &'a mut usize);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (least, count): (u32, &mut usize)) {
        let values: &[f32] = cast_slice(values);
        *count = values.iter().filter(|&&value| magnitude(value) >= least).count();
    }
}

/// Which magnitudes are taken: all above `least`, and the first few that equal it.
struct Threshold {
    least: u32,
    /// How many, at least one.
    equal: usize,
}

impl Threshold {
    /// Whether the next value is taken.
    #[inline(always)]
    fn takes(&mut self, value: f32) -> bool {
        if magnitude(value) == self.least {
            self.equal -= 1;
            if self.equal == 0 {
                *self = Self { least: self.least + 1, equal: usize::MAX };
            }
            return true;
        }
        magnitude(value) > self.least
    }
}

/// Moves the magnitudes from the array to the pairs.
struct Take;

impl Pass for Take {
    type Beside<'a> = (Threshold, &'a mut Vec<Pair>);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (mut threshold, pairs): (Threshold, &mut Vec<Pair>)) {
        let values: &mut [f32] = cast_slice_mut(values);
        let (groups, rest) = values.as_chunks_mut::<GROUP>();
        let start_of_rest = groups.len() * GROUP;
        for (group, start) in groups.iter_mut().zip((0..).step_by(GROUP)) {
            let least = threshold.least;
            for_each_bit(interesting(group, |value| magnitude(value) >= least), |index| {
                take(&mut threshold, &mut group[index], start + index, pairs);
            });
        }
        for (value, index) in rest.iter_mut().zip(start_of_rest..) {
            take(&mut threshold, value, index, pairs);
        }
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
