//! Stateless random numbers for rounding, one per element: a hash of the element's index and of a key for the call.
//!
//! **Source** of the hash: C. Wellons, "Prospecting for hash functions", 2018, `lowbias32`; of the mixing of keys: Steele, Lea and
//! Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, as in `SplitMix64`.

/// The random numbers of a call.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    start: u32,
    key: u32,
}

impl Draws {
    /// Returns the random numbers of a call, identified by a seed and further numbers in this order. Different calls are
    /// practically independent.
    pub fn of(numbers: &[u64]) -> Self {
        let mixed = numbers.iter().fold(0, |mixed, &number| mix(mixed ^ number));
        Self { start: mixed as u32, key: (mixed >> 32) as u32 }
    }

    /// Returns a number strictly between −½ and ½. It is an odd multiple of 2⁻¹⁷, so that its sum with an 8-bit integer is exact.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> f32 {
        let mut hash = self.start.wrapping_add(index as u32);
        hash = (hash ^ hash >> 16).wrapping_mul(0x7feb_352d) ^ self.key;
        hash = (hash ^ hash >> 15).wrapping_mul(0x846c_a68b);
        let odd = (hash >> 16 << 1 | 1).cast_signed();
        (odd - (1 << 16)) as f32 * (1.0 / (1 << 17) as f32)
    }
}

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
