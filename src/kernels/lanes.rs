//! Instructions that the compiler does not generate by itself: conversions of `f16`, and non-temporal stores.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_FROUND_TO_NEAREST_INT, _mm_sfence, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_stream_si256, _mm512_cvtph_ps, _mm512_cvtps_ph, _mm512_stream_si512,
};

use half::f16;

/// The number of halves per conversion: the number of `f32` in an AVX-512 register.
pub(super) const LANES: usize = 16;

pub(super) const LINE: usize = 64;

/// An aligned cache line.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; LINE]);

/// Converts `N` half-precision elements at once.
pub(super) trait Convert<H, const N: usize>: Copy {
    fn widen(self, halves: [H; N]) -> [f32; N];
    fn round(self, wide: [f32; N]) -> [H; N];
}

/// The instructions of a level beyond those that the compiler generates by itself.
///
/// A value of a type that implements this proves that the processor has the level's instructions.
pub(super) trait Lanes: Convert<f16, LANES> {
    /// Whether there are instructions to convert `f16`.
    const CONVERTS_F16: bool;

    /// Copies a cache line, by non-temporal stores if the level has them.
    ///
    /// [`Lanes::order_streams`] orders the stores before later ones, as other threads observe them.
    #[inline(always)]
    fn stream(self, to: &mut Line, from: &[u8; LINE]) {
        to.0 = *from;
    }

    /// Orders streamed stores before all later ones.
    #[inline(always)]
    fn order_streams(self) {
        // SAFETY: every x86-64 has SSE.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            _mm_sfence();
        }
    }
}

/// Converts by the plain arithmetic of each half-precision type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portable;

impl Lanes for Portable {
    const CONVERTS_F16: bool = false;
}

/// Rounds to nearest, ties to even, in any rounding mode that the program has set.
#[cfg(target_arch = "x86_64")]
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// AVX2 with F16C, which converts eight elements at a time.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    const CONVERTS_F16: bool = true;

    #[inline(always)]
    fn stream(self, to: &mut Line, from: &[u8; LINE]) {
        let [one, two]: [__m256i; 2] = bytemuck::cast(*from);
        let to: *mut __m256i = (&raw mut *to).cast();
        // SAFETY: an `Avx2` exists only where the processor has AVX2. A line is two vectors, aligned to more than a vector.
        unsafe {
            _mm256_stream_si256(to, one);
            _mm256_stream_si256(to.add(1), two);
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Convert<f16, LANES> for Avx2 {
    #[inline(always)]
    fn widen(self, halves: [f16; LANES]) -> [f32; LANES] {
        let [one, two]: [__m128i; 2] = bytemuck::cast(halves);
        // SAFETY: an `Avx2` exists only where the processor has F16C.
        bytemuck::cast(unsafe { [_mm256_cvtph_ps(one), _mm256_cvtph_ps(two)] })
    }

    #[inline(always)]
    fn round(self, wide: [f32; LANES]) -> [f16; LANES] {
        let [one, two]: [__m256; 2] = bytemuck::cast(wide);
        // SAFETY: an `Avx2` exists only where the processor has F16C.
        bytemuck::cast(unsafe { [_mm256_cvtps_ph::<NEAREST>(one), _mm256_cvtps_ph::<NEAREST>(two)] })
    }
}

/// AVX-512 F, which converts sixteen elements at a time.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn new() -> Self {
        Self(())
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    const CONVERTS_F16: bool = true;

    #[inline(always)]
    fn stream(self, to: &mut Line, from: &[u8; LINE]) {
        // SAFETY: an `Avx512` exists only where the processor has AVX-512 F. A line is one vector, and aligned as one.
        unsafe { _mm512_stream_si512((&raw mut *to).cast(), bytemuck::cast(*from)) };
    }
}

#[cfg(target_arch = "x86_64")]
impl Convert<f16, LANES> for Avx512 {
    #[inline(always)]
    fn widen(self, halves: [f16; LANES]) -> [f32; LANES] {
        // SAFETY: an `Avx512` exists only where the processor has AVX-512 F.
        bytemuck::cast(unsafe { _mm512_cvtph_ps(bytemuck::cast(halves)) })
    }

    #[inline(always)]
    fn round(self, wide: [f32; LANES]) -> [f16; LANES] {
        // SAFETY: an `Avx512` exists only where the processor has AVX-512 F.
        bytemuck::cast(unsafe { _mm512_cvtps_ph::<NEAREST>(bytemuck::cast(wide)) })
    }
}
