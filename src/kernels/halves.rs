//! Conversions between the two half-precision types and `f32`, without branches, so that they vectorise.
//!
//! The results equal those of the crate `half` and of processors with such instructions: rounded to nearest, ties to even; a NaN
//! keeps as much of its payload as fits, and is quiet.

use half::{bf16, f16};

use super::lanes::{Convert, LANES, Lanes, Portable};

/// The unit in the last place of subnormal `f16` numbers.
const TWO_TO_MINUS_24: f32 = 1.0 / (1 << 24) as f32;

pub(super) trait Half: bytemuck::Pod {
    /// The bits of infinity. Without the sign, the bits of a NaN are greater.
    const INFINITY: i16;

    /// Widens by plain arithmetic, so that the compiler vectorises a loop over it.
    fn widened(self) -> f32;
    fn rounded(wide: f32) -> Self;

    /// Returns the instructions of a level for this conversion, if they are faster.
    fn converter<L: Lanes>(lanes: L) -> Option<impl Convert<Self, LANES>>;
}

impl Half for f16 {
    const INFINITY: i16 = 0x7c00;

    #[inline(always)]
    fn widened(self) -> f32 {
        let sign = u32::from(self.to_bits() & 0x8000) << 16;
        let magnitude = u32::from(self.to_bits() & 0x7fff);
        // f32 has 13 more bits of mantissa, and an exponent bias larger by 112.
        let normal = (magnitude << 13) + (112 << 23);
        let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
        let subnormal = (magnitude as i32 as f32 * TWO_TO_MINUS_24).to_bits();
        let widened = if magnitude >= 0x7c00 { (normal + (112 << 23)) | quiet } else { normal };
        let widened = if magnitude < 0x0400 { subnormal } else { widened };
        f32::from_bits(sign | widened)
    }

    #[inline(always)]
    fn rounded(wide: f32) -> Self {
        let sign = (wide.to_bits() >> 16) & 0x8000;
        let magnitude = wide.to_bits() & 0x7fff_ffff;
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_add(0x0fff + odd).wrapping_sub(112 << 23) >> 13;
        // The unit in the last place of 0.5 equals that of subnormal halves, so adding 0.5 rounds to it.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let nan = 0x7e00 | ((magnitude >> 13) & 0x03ff);
        let beyond = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
        let rounded = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let rounded = if magnitude >= 0x4780_0000 { beyond } else { rounded };
        Self::from_bits((sign | rounded) as u16)
    }

    #[inline(always)]
    fn converter<L: Lanes>(lanes: L) -> Option<impl Convert<Self, LANES>> {
        L::CONVERTS_F16.then_some(lanes)
    }
}

impl Half for bf16 {
    const INFINITY: i16 = 0x7f80;

    /// A signalling NaN stays one until it is used or rounded: checking for it here would cost more than all the rest.
    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn rounded(wide: f32) -> Self {
        let bits = wide.to_bits();
        let odd = (bits >> 16) & 1;
        let number = bits.wrapping_add(0x7fff + odd);
        let nan = bits | 0x0040_0000;
        let rounded = if wide.is_nan() { nan } else { number };
        Self::from_bits((rounded >> 16) as u16)
    }

    #[inline(always)]
    fn converter<L: Lanes>(_: L) -> Option<impl Convert<Self, LANES>> {
        None::<Portable>
    }
}

impl<H: Half, const N: usize> Convert<H, N> for Portable {
    #[inline(always)]
    fn widen(self, halves: [H; N]) -> [f32; N] {
        halves.map(H::widened)
    }

    #[inline(always)]
    fn round(self, wide: [f32; N]) -> [H; N] {
        wide.map(H::rounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_halves() -> impl Iterator<Item = u16> {
        0..=u16::MAX
    }

    #[test]
    fn widening_agrees_with_the_half_crate() {
        for bits in all_halves() {
            assert_eq!(
                f16::from_bits(bits).widened().to_bits(),
                f16::from_bits(bits).to_f32().to_bits(),
                "{bits:#x}"
            );
            let half = bf16::from_bits(bits);
            let signalling = half.is_nan() && bits & 0x0040 == 0;
            let quiet = if signalling { 0x0040_0000 } else { 0 };
            assert_eq!(half.widened().to_bits() | quiet, half.to_f32().to_bits(), "{bits:#x}");
        }
    }

    /// Checks every half and every midpoint between two, each also one unit in the last place of `f32` below and above. This covers all ties,
    /// overflows, infinities, NaNs and subnormals.
    #[test]
    fn rounding_agrees_with_the_half_crate() {
        fn check<H: Half + PartialEq>(from_f32: impl Fn(f32) -> H, wide: u32) {
            let wide = f32::from_bits(wide);
            let [found, expected] = [H::rounded(wide), from_f32(wide)];
            assert_eq!(bytemuck::bytes_of(&found), bytemuck::bytes_of(&expected), "{:#x}", wide.to_bits());
        }
        for bits in all_halves() {
            let f16_bits = f16::from_bits(bits).to_f32().to_bits();
            let bf16_bits = u32::from(bits) << 16;
            // Half the distance to the next one, which depends on the value for subnormal f16.
            let between =
                (f16::from_bits(bits).to_f32() + f16::from_bits(bits.wrapping_add(1)).to_f32()) / 2.0;
            for near in [f16_bits, f16_bits | 0x1000, between.to_bits(), bf16_bits, bf16_bits | 0x8000] {
                for wide in [near.wrapping_sub(1), near, near.wrapping_add(1)] {
                    check(f16::from_f32, wide);
                    check(bf16::from_f32, wide);
                }
            }
        }
        for wide in (0..=u32::MAX).step_by(1021) {
            check(f16::from_f32, wide);
            check(bf16::from_f32, wide);
        }
    }
}
