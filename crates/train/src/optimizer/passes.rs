//! The loops over elements, compiled for every instruction set. All of them give the same bits.

use unisono::internals::{Lanes, Pass};

/// Returns the magnitude of a number, as bits that are ordered like magnitudes. Infinity exceeds all finite numbers, and NaN exceeds infinity.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

/// Finds the largest [magnitude] of some values. The array of the pass is the result, a single number.
#[derive(Debug)]
pub(super) struct Largest;

impl Pass for Largest {
    type Beside<'a> = &'a [f32];

    #[inline(always)]
    fn run<L: Lanes>(_: L, largest: &mut [u8], values: &[f32]) {
        let [largest] = bytemuck::cast_slice_mut(largest) else { unreachable!("it is one number") };
        let mut most: u32 = *largest;
        for value in values {
            most = most.max(magnitude(*value));
        }
        *largest = most;
    }
}

/// Sums squares. The array of the pass is one `f64` sum per lane. Element `i` is added to lane `i` modulo [`LANES`] for any vector width, so that all
/// processors add in the same order.
#[derive(Debug)]
pub(super) struct SquareSum;

/// The number of sums: enough that no addition waits for the previous one.
pub(super) const LANES: usize = 32;

impl Pass for SquareSum {
    type Beside<'a> = &'a [f32];

    #[inline(always)]
    fn run<L: Lanes>(_: L, sums: &mut [u8], gradient: &[f32]) {
        let sums: &mut [f64] = bytemuck::cast_slice_mut(sums);
        let mut lanes: [f64; LANES] = std::array::from_fn(|lane| sums[lane]);
        let (blocks, rest) = gradient.as_chunks::<LANES>();
        for block in blocks {
            for (sum, &element) in lanes.iter_mut().zip(block) {
                *sum += f64::from(element) * f64::from(element);
            }
        }
        for (sum, &element) in lanes.iter_mut().zip(rest) {
            *sum += f64::from(element) * f64::from(element);
        }
        sums.copy_from_slice(&lanes);
    }
}
