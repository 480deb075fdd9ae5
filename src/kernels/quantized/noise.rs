//! Random parts of a step.

/// A random number for each element, the same for the same seed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noise {
    seed: u32,
}

impl Noise {
    pub(super) fn new(seed: u32) -> Self {
        Self { seed }
    }

    /// That of an element, from −½ to below ½, in steps of 2⁻²⁴.
    ///
    /// A number that depends on the index alone can be computed for many elements by one instruction. The mixer is `lowbias32` of
    /// Chris Wellons' search for integer hashes, 2018.
    #[inline(always)]
    pub(super) fn at(self, index: usize) -> f32 {
        let mut bits = (index as u32).wrapping_add(self.seed);
        bits ^= bits >> 16;
        bits = bits.wrapping_mul(0x7feb_352d);
        bits ^= bits >> 15;
        bits = bits.wrapping_mul(0x846c_a68b);
        bits ^= bits >> 16;
        // As a signed number, which all instruction sets convert.
        (bits >> 8).cast_signed() as f32 * (1.0 / (1 << 24) as f32) - 0.5
    }
}
