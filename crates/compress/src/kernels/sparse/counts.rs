//! Radix selection: counts of magnitudes per bin, and the magnitude of a given rank.

use super::{Pair, magnitude};

/// The number of bits below those of the first round, which counts the exponent and three bits of the fraction.
const UPPER: u32 = 20;

const BINS: usize = 1 << (u32::BITS - 1 - UPPER);

/// A range of bits of a magnitude: the lowest bit, and their number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits {
    from: u32,
    count: u32,
}

impl Bits {
    /// Returns whether the bits above these are the prefix.
    #[inline(always)]
    pub(super) fn follow(self, prefix: u32, value: f32) -> bool {
        magnitude(value) >> (self.from + self.count) == prefix
    }
}

/// The bits of the first round.
pub(super) const UPPER_BITS: Bits = Bits { from: UPPER, count: u32::BITS - 1 - UPPER };
const MIDDLE: Bits = Bits { from: 10, count: 10 };
const LOWER: Bits = Bits { from: 0, count: 10 };

/// The number of tables, which successive values use in turn, so that an increment need not wait for the previous one.
const TABLES: usize = 4;

/// The number of magnitudes in each bin.
pub(super) struct Counts([[u32; BINS]; TABLES]);

impl Counts {
    pub(super) fn new() -> Self {
        Self([[0; BINS]; TABLES])
    }

    fn of(&self, bin: usize) -> usize {
        self.0.iter().map(|table| table[bin] as usize).sum()
    }

    /// Returns the number of magnitudes in this bin and in those above it.
    pub(super) fn from(&self, bin: usize) -> usize {
        (bin..BINS).map(|bin| self.of(bin)).sum()
    }

    /// Counts all magnitudes by their upper bits.
    #[inline(always)]
    pub(super) fn add_all(&mut self, values: &[f32]) {
        let Self(tables) = self;
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

    pub(super) fn any_not_finite(&self) -> bool {
        self.from((f32::INFINITY.to_bits() >> UPPER) as usize) > 0
    }

    /// Counts a magnitude by these bits, if the bits above them are the prefix.
    #[inline(always)]
    pub(super) fn add(&mut self, index: usize, value: f32, bits: Bits, prefix: u32) {
        if bits.follow(prefix, value) {
            let bin = magnitude(value) >> bits.from & ((1 << bits.count) - 1);
            self.0[index % TABLES][bin as usize % BINS] += 1;
        }
    }

    /// Returns the threshold at this place of a bin of upper bits. `count` counts the magnitudes by the bits passed to it.
    pub(super) fn threshold(
        &mut self,
        bin: u32,
        place: usize,
        mut count: impl FnMut(&mut Self, Bits, u32),
    ) -> Threshold {
        let (mut least, mut equal) = (bin, place);
        for bits in [MIDDLE, LOWER] {
            *self = Self::new();
            count(self, bits, least);
            let (bin, place) = self.bin_of(equal);
            (least, equal) = (least << bits.count | bin, place);
        }
        Threshold { least, equal }
    }

    /// Returns the threshold, if all magnitudes of the bin are among these pairs.
    pub(super) fn threshold_of(&mut self, bin: u32, place: usize, pairs: &[Pair]) -> Threshold {
        self.threshold(bin, place, |counts, bits, prefix| {
            pairs.iter().for_each(|pair| counts.add(pair.index as usize, pair.value, bits, prefix));
        })
    }

    /// Returns the bin of the magnitude at this place, counted from 1 at the largest, and its place within the bin.
    pub(super) fn bin_of(&self, mut place: usize) -> (u32, usize) {
        for bin in (0..BINS).rev() {
            let count = self.of(bin);
            if place <= count {
                return (bin as u32, place);
            }
            place -= count;
        }
        unreachable!("the bins have all counted magnitudes");
    }
}

/// The rule by which elements are selected: all magnitudes above `least`, and the first few that equal it.
pub(super) struct Threshold {
    pub(super) least: u32,
    /// The number of magnitudes equal to it, at least one.
    equal: usize,
}

impl Threshold {
    pub(super) fn all_from(least: u32) -> Self {
        Self { least, equal: usize::MAX }
    }

    /// Selects all magnitudes in this bin of upper bits and in those above it.
    pub(super) fn all_from_bin(bin: u32) -> Self {
        Self::all_from(bin << UPPER)
    }

    #[inline(always)]
    pub(super) fn selects(&mut self, value: f32) -> bool {
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
