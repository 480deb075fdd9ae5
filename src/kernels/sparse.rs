//! The largest magnitudes of an array of `f32`, as pairs of an index and a value.
//!
//! The threshold is found by radix selection: the magnitudes are counted by their upper bits, those in the bin of the threshold
//! by the bits that follow, and so on. Three rounds give it exactly, without memory that grows with the array, whatever the
//! distribution.

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
    assert!(
        u32::try_from(values.len()).is_ok(),
        "an index has 32 bits: {} values are too many",
        values.len()
    );
    pairs.clear();
    let mut counts = Counts::new();
    level.compiled::<CountAll>()(cast_slice_mut(values), &mut counts);
    if counts.any_from((INFINITY >> UPPER) as usize) {
        let index = values.iter().position(|value| !value.is_finite());
        return Err(index.expect("one of them was counted"));
    }
    let most = most.min(values.len());
    if most == 0 {
        return Ok(());
    }
    let (mut prefix, mut wanted) = counts.bin_of(most);
    for bits in [MIDDLE, LOWER] {
        counts.clear();
        level.compiled::<CountBin>()(cast_slice_mut(values), (bits, prefix, &mut counts));
        let (bin, rest) = counts.bin_of(wanted);
        (prefix, wanted) = (prefix << bits.count | bin, rest);
    }
    pairs.reserve_exact(most);
    level.compiled::<Take>()(cast_slice_mut(values), (Threshold { least: prefix, equal: wanted }, pairs));
    Ok(())
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

const MIDDLE: Bits = Bits { from: 10, count: 10 };
const LOWER: Bits = Bits { from: 0, count: 10 };

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & MAGNITUDE
}

/// So many values are looked at together, to skip them if none is of interest.
const GROUP: usize = 32;

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

    fn any_from(&self, bin: usize) -> bool {
        (bin..BINS).any(|bin| self.of(bin) > 0)
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
        let Counts(tables) = counts;
        let within = |value| magnitude(value) >> (bits.from + bits.count) == prefix;
        let mut count = |group: &[f32]| {
            for (index, &value) in group.iter().enumerate() {
                if within(value) {
                    let bin = magnitude(value) >> bits.from & ((1 << bits.count) - 1);
                    tables[index % TABLES][bin as usize % BINS] += 1;
                }
            }
        };
        let (groups, rest) = values.as_chunks::<GROUP>();
        for group in groups {
            // Without a way out of the loop, it becomes vector instructions.
            if group.iter().fold(false, |any, &value| any | within(value)) {
                count(group);
            }
        }
        count(rest);
    }
}

/// Which magnitudes are taken: all above `least`, and the first few that equal it.
struct Threshold {
    least: u32,
    /// At least one.
    equal: usize,
}

/// Moves the magnitudes from the array to the pairs.
struct Take;

impl Pass for Take {
    type Beside<'a> = (Threshold, &'a mut Vec<Pair>);

    #[inline(always)]
    fn run<L: Lanes>(_: L, values: &mut [u8], (threshold, pairs): (Threshold, &mut Vec<Pair>)) {
        let values: &mut [f32] = cast_slice_mut(values);
        let Threshold { mut least, mut equal } = threshold;
        for (group, start) in values.chunks_mut(GROUP).zip((0_u32..).step_by(GROUP)) {
            let any = match <&[f32; GROUP]>::try_from(&*group) {
                Ok(group) => group.iter().fold(false, |any, &value| any | (magnitude(value) >= least)),
                Err(_) => true,
            };
            if !any {
                continue;
            }
            for (value, index) in group.iter_mut().zip(start..) {
                if magnitude(*value) < least {
                    continue;
                }
                if magnitude(*value) == threshold.least {
                    equal -= 1;
                    // No more of them are wanted.
                    least += u32::from(equal == 0);
                }
                pairs.push(Pair { index, value: std::mem::take(value) });
            }
        }
    }
}

#[cfg(test)]
mod tests;
