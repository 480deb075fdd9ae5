//! Codes that are multiples of a scale, and codes that are signs.

use super::Code;

/// Eight bits: the nearest multiple of the scale, which is the block's largest magnitude / 127.
pub type Int8 = Int<8, false>;

/// As [`Int8`], but at random one of the two nearest multiples.
pub type Int8Stochastic = Int<8, true>;

/// Four bits: the nearest multiple of the scale, which is the block's largest magnitude / 7.
pub type Int4 = Int<4, false>;

/// As [`Int4`], but at random one of the two nearest multiples.
pub type Int4Stochastic = Int<4, true>;

/// Added to a small number, it leaves no bits for a fraction. The sum is rounded to the nearest integer, ties to even, which is
/// then in its lowest bits. All instruction sets support this, and not all have a rounding instruction.
const ROUND: f32 = 1.5 * (1 << 23) as f32;

/// Symmetric n-bit integers. The smallest one is not used.
#[derive(Debug, Clone, Copy)]
pub struct Int<const BITS: usize, const IS_STOCHASTIC: bool> {
    scale: f32,
    inverse: f32,
}

impl<const BITS: usize, const IS_STOCHASTIC: bool> Int<BITS, IS_STOCHASTIC> {
    /// The largest multiple of a scale.
    const MOST: f32 = ((1 << (BITS - 1)) - 1) as f32;

    /// The largest scale whose largest multiple is finite. The largest multiple of `f32::MAX / MOST`, which is rounded up, is not.
    const LARGEST_SCALE: f32 = (f32::MAX / Self::MOST).next_down();

    /// The bits of a byte outside the code.
    const UNUSED: usize = 8 - BITS;
}

impl<const BITS: usize, const IS_STOCHASTIC: bool> Code for Int<BITS, IS_STOCHASTIC> {
    const BITS: usize = BITS;
    const SCALES: usize = 1;
    const IS_STOCHASTIC: bool = IS_STOCHASTIC;

    /// Neither the scale nor its inverse is subnormal, nor the largest multiple infinite.
    #[inline(always)]
    fn fitting(_: &[f32], largest: f32) -> Self {
        let scale = normal((largest / Self::MOST).min(Self::LARGEST_SCALE));
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        Self { scale, inverse }
    }

    #[inline(always)]
    fn scales(self) -> [f32; 2] {
        [self.scale, 0.0]
    }

    #[inline(always)]
    fn of_scales([scale, _]: [f32; 2]) -> Self {
        Self { scale, inverse: 0.0 }
    }

    #[inline(always)]
    fn encode(self, value: f32, off: f32) -> (u8, f32) {
        // The product exceeds the largest multiple by at most a few rounding errors, and is rounded to it, but with `off` it might be rounded up.
        let multiple = value * self.inverse;
        let multiple = if IS_STOCHASTIC { (multiple + off).clamp(-Self::MOST, Self::MOST) } else { multiple };
        let rounded = multiple + ROUND;
        (rounded.to_bits() as u8 & u8::MAX >> Self::UNUSED, (rounded - ROUND) * self.scale)
    }

    #[inline(always)]
    fn decode(self, code: u8) -> f32 {
        let multiple = (code << Self::UNUSED).cast_signed() >> Self::UNUSED;
        f32::from(multiple) * self.scale
    }
}

/// One bit, the sign: an element becomes the mean of the block's elements with its sign.
///
/// Source: Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent and its application to data-parallel distributed training of
/// speech DNNs", Interspeech 2014, section 2.
#[derive(Debug, Clone, Copy)]
pub struct OneBit {
    /// The means of the elements whose sign bit is 0, and of those whose sign bit is 1.
    means: [f32; 2],
}

/// The number of parallel partial sums, equal for all instruction sets, so that all give the same bits.
const SUMS: usize = 16;

/// Elements are scaled by this before they are added, so that the sum of a block is not infinite.
const PART: f32 = 1.0 / super::BLOCK as f32;

impl Code for OneBit {
    const BITS: usize = 1;
    const SCALES: usize = 2;
    const IS_STOCHASTIC: bool = false;

    #[inline(always)]
    fn fitting(values: &[f32], largest: f32) -> Self {
        let (mut positive, mut negative, mut negatives) = ([0.0; SUMS], [0.0; SUMS], [0; SUMS]);
        let (groups, rest) = values.as_chunks::<SUMS>();
        for group in groups {
            for index in 0..SUMS {
                add(group[index], &mut positive[index], &mut negative[index], &mut negatives[index]);
            }
        }
        for (index, &value) in rest.iter().enumerate() {
            add(value, &mut positive[index], &mut negative[index], &mut negatives[index]);
        }
        let negatives: u32 = negatives.iter().sum();
        let mean = |sums: [f32; SUMS], count: usize| {
            let sum = sums.iter().sum::<f32>();
            // Rounding errors may make the mean larger than all elements.
            normal((sum / (count.max(1) as f32 * PART)).min(largest))
        };
        let negatives = negatives as usize;
        // Not −0 if there are no negative elements.
        Self { means: [mean(positive, values.len() - negatives), 0.0 - mean(negative, negatives)] }
    }

    #[inline(always)]
    fn scales(self) -> [f32; 2] {
        self.means
    }

    #[inline(always)]
    fn of_scales(means: [f32; 2]) -> Self {
        Self { means }
    }

    #[inline(always)]
    fn encode(self, value: f32, _: f32) -> (u8, f32) {
        let sign = (value.to_bits() >> 31) as u8;
        (sign, self.decode(sign))
    }

    #[inline(always)]
    fn decode(self, code: u8) -> f32 {
        let [of_positives, of_negatives] = self.means;
        if code & 1 == 0 { of_positives } else { of_negatives }
    }
}

/// Adds the scaled magnitude of a value to the sum of its sign.
#[inline(always)]
fn add(value: f32, positive: &mut f32, negative: &mut f32, negatives: &mut u32) {
    let part = value * PART;
    *positive += part.max(0.0);
    *negative += (-part).max(0.0);
    *negatives += value.to_bits() >> 31;
}

/// Returns 0 instead of a subnormal scale, which would have lost bits.
#[inline(always)]
fn normal(scale: f32) -> f32 {
    if scale < f32::MIN_POSITIVE { 0.0 } else { scale }
}
