//! The loops over elements, compiled for every instruction set. All of them give the same bits.

use unisono::internals::Loop;

/// Returns the magnitude of a number, as bits that are ordered like magnitudes. Infinity exceeds all finite numbers, and NaN exceeds infinity.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

/// Finds the largest [magnitude] in some arrays.
pub(super) struct Largest<'a>(pub(super) &'a [&'a [f32]]);

impl Loop<f32> for Largest<'_> {
    #[inline(always)]
    fn run(self) -> f32 {
        let mut largest = 0;
        for array in self.0 {
            for value in *array {
                largest = largest.max(magnitude(*value));
            }
        }
        f32::from_bits(largest)
    }
}

/// Sums squares, with one sum per lane. Element `i` is added to lane `i` modulo [`LANES`] for any vector width, so that all processors add in the same
/// order.
pub(super) struct SquareSum<'a>(pub(super) &'a [f32]);

/// The number of sums: enough that no addition waits for the previous one.
const LANES: usize = 32;

impl Loop<f64> for SquareSum<'_> {
    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [0.0; LANES];
        let (blocks, rest) = self.0.as_chunks::<LANES>();
        for block in blocks {
            for (sum, &element) in lanes.iter_mut().zip(block) {
                *sum += f64::from(element) * f64::from(element);
            }
        }
        for (sum, &element) in lanes.iter_mut().zip(rest) {
            *sum += f64::from(element) * f64::from(element);
        }
        lanes.into_iter().sum()
    }
}
