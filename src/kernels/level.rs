//! Instruction sets of kernels, detected at run time.
//!
//! Every loop is written once, as a [`Loop`] or a [`Pass`], and compiled once for each level, where the compiler vectorises it. All levels
//! produce the same bits.

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};

/// A set of instructions that this processor has.
///
/// It can only be obtained by detection, which makes [`Level::run`] sound.
#[derive(Debug, Clone, Copy)]
pub struct Level(Instructions);

#[derive(Debug, Clone, Copy)]
enum Instructions {
    /// The baseline of the architecture: SSE2, or NEON.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// A loop with its operands, which returns an `R`.
pub trait Loop<R = ()> {
    /// Runs the loop. It and all functions that it calls must be `#[inline(always)]`: code that is not inlined into a function with
    /// wide vectors enabled does not use them. Closures cannot be, so only short ones are inlined.
    fn run(self) -> R;
}

/// A loop over an array and a second operand, which may use the instructions of [`Lanes`].
pub(super) trait Pass {
    /// The second operand: another array, read only or written too, or a number.
    type Beside<'a>;

    /// Runs the loop, as [`Loop::run`] does.
    fn run<L: Lanes>(lanes: L, array: &mut [u8], beside: Self::Beside<'_>);
}

pub(super) type Compiled<P> = for<'a, 'b> fn(array: &'a mut [u8], beside: <P as Pass>::Beside<'b>);

impl Level {
    /// Returns the name, for humans.
    pub fn name(self) -> &'static str {
        match self.0 {
            Instructions::Baseline => "no wide vector instructions that reductions could use",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => "AVX-512",
        }
    }

    /// Returns the best level.
    pub fn best() -> Self {
        Self::available().next_back().expect("every processor has the baseline")
    }

    /// Returns all levels of this processor, the best one last.
    pub fn available() -> impl DoubleEndedIterator<Item = Self> {
        // The standard library detects features once.
        #[cfg(target_arch = "x86_64")]
        let wide = {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            [avx2.then_some(Instructions::Avx2), avx512.then_some(Instructions::Avx512)]
        };
        #[cfg(not(target_arch = "x86_64"))]
        let wide: [Option<Instructions>; 0] = [];
        std::iter::once(Instructions::Baseline).chain(wide.into_iter().flatten()).map(Self)
    }

    /// Runs a loop, compiled for this level.
    pub fn run<R>(self, work: impl Loop<R>) -> R {
        match self.0 {
            Instructions::Baseline => work.run(),
            // SAFETY: this level exists only if the processor was found to have AVX2 and F16C.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { avx2(work) },
            // SAFETY: this level exists only if the processor was found to have AVX2, F16C and these parts of AVX-512.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { avx512(work) },
        }
    }

    /// Returns the pass, compiled for this level.
    pub(super) fn compiled<P: Pass>(self) -> Compiled<P> {
        match self.0 {
            Instructions::Baseline => |array, beside| P::run(Portable, array, beside),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => |array, beside| {
                // SAFETY: this function is returned only if the processor was found to have AVX2 and F16C.
                unsafe { pass_in_avx2::<P>(array, beside) }
            },
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => |array, beside| {
                // SAFETY: this function is returned only if the processor was found to have AVX2, F16C and these parts of AVX-512.
                unsafe { pass_in_avx512::<P>(array, beside) }
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn avx2<R>(work: impl Loop<R>) -> R {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<R>(work: impl Loop<R>) -> R {
    work.run()
}

// A pass has functions of its own, which receive its operands in registers: short messages are combined in a few nanoseconds.

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn pass_in_avx2<P: Pass>(array: &mut [u8], beside: P::Beside<'_>) {
    P::run(Avx2::new(), array, beside);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn pass_in_avx512<P: Pass>(array: &mut [u8], beside: P::Beside<'_>) {
    P::run(Avx512::new(), array, beside);
}
