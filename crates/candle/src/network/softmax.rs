//! The softmax of causal attention, and its derivative, in vector instructions.

use std::f32::consts::LOG2_E;

use unisono::internals::{Lanes, Level, Pass};

/// The number of parallel partial sums: a single sum would prevent vectorisation.
const LANES: usize = 16;

/// Scores of consecutive queries, one row per query.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    /// The first query, which attends to the keys up to its own number.
    pub(super) first: usize,
    pub(super) keys: usize,
    pub(super) scale: f32,
}

impl Rows {
    /// Returns the number of keys that each row attends to.
    #[inline(always)]
    fn seen(self) -> impl Iterator<Item = usize> {
        self.first + 1..
    }

    /// Replaces the scores of attended keys by their softmax after multiplication by the factor, and all other scores by zero.
    pub(super) fn softmax(self, scores: &mut [f32]) {
        Level::best().compiled::<Softmax>()(bytemuck::cast_slice_mut(scores), self);
    }

    /// Replaces the derivatives with respect to probabilities by derivatives with respect to scores.
    pub(super) fn before_softmax(self, probabilities: &[f32], derivatives: &mut [f32]) {
        Level::best().compiled::<Derivative>()(bytemuck::cast_slice_mut(derivatives), (self, probabilities));
    }
}

struct Softmax;

impl Pass for Softmax {
    type Beside<'a> = Rows;

    #[inline(always)]
    fn run<L: Lanes>(_: L, scores: &mut [u8], rows: Rows) {
        let scores: &mut [f32] = bytemuck::cast_slice_mut(scores);
        for (seen, row) in rows.seen().zip(scores.chunks_exact_mut(rows.keys)) {
            // Whole vectors. The scores of keys that are not attended to contribute nothing.
            let end = seen.next_multiple_of(LANES).min(rows.keys);
            row[seen..end].fill(f32::NEG_INFINITY);
            let (vectors, rest) = row[..end].as_chunks_mut::<LANES>();
            let highest = |one: f32, other: f32| if other > one { other } else { one };
            let mut most = [f32::NEG_INFINITY; LANES];
            for vector in &*vectors {
                most.iter_mut().zip(vector).for_each(|(most, x)| *most = highest(*most, *x));
            }
            let most = most.iter().chain(&*rest).copied().fold(f32::NEG_INFINITY, highest);
            let mut sums = [0.0; LANES];
            for vector in &mut *vectors {
                for (sum, x) in sums.iter_mut().zip(vector) {
                    *x = exp(rows.scale * (*x - most));
                    *sum += *x;
                }
            }
            rest.iter_mut().for_each(|x| *x = exp(rows.scale * (*x - most)));
            let total = sums.iter().chain(&*rest).sum::<f32>();
            row[..seen].iter_mut().for_each(|x| *x /= total);
            row[seen..].fill(0.0);
        }
    }
}

struct Derivative;

impl Pass for Derivative {
    type Beside<'a> = (Rows, &'a [f32]);

    #[inline(always)]
    fn run<L: Lanes>(_: L, derivatives: &mut [u8], (rows, probabilities): Self::Beside<'_>) {
        let derivatives: &mut [f32] = bytemuck::cast_slice_mut(derivatives);
        let all = probabilities.chunks_exact(rows.keys).zip(derivatives.chunks_exact_mut(rows.keys));
        for (seen, (y, dy)) in rows.seen().zip(all) {
            let (y, (dy, unseen)) = (&y[..seen], dy.split_at_mut(seen));
            let mean = dot(y, dy);
            dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = rows.scale * y * (*dy - mean));
            unseen.fill(0.0);
        }
    }
}

/// Returns the inner product, summed in `LANES` partial sums.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns the exponential of a number that is at most 0. The result is exp(-87) for numbers below -87, and NaN for NaN. (Moshier, Cephes' `expf`:
/// within 2 units in the last place.) The standard library's function needs a call per number.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// A number whose last bit is worth 1: adding a value to it rounds the value to an integer.
    const ROUNDING: f32 = 12_582_912.0;
    /// The natural logarithm of 2, in two parts.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    const COEFFICIENTS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x * LOG2_E + ROUNDING;
    let whole = shifted - ROUNDING;
    let rest = x - whole * LN_2[0] - whole * LN_2[1];
    let mut polynomial = 0.0;
    for coefficient in COEFFICIENTS {
        polynomial = polynomial * rest + coefficient;
    }
    // The last bits of `shifted` are this integer, which becomes an exponent here.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    (polynomial * rest * rest + rest + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exponentials_match_the_standard_library() {
        for step in 0..=870_000 {
            let x = -f32::from(u16::try_from(step % 1000).unwrap()) / 7919.0 - (step / 1000) as f32 / 10.0;
            let (found, expected) = (f64::from(exp(x.max(-87.0))), f64::from(x.max(-87.0)).exp());
            assert!((found / expected - 1.0).abs() < 2.5e-7, "{x}: {found}, expected {expected}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), exp(-87.0));
        assert!(exp(f32::NAN).is_nan());
    }
}
