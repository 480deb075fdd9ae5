//! Causal attention as one operation.
//!
//! **Source**: Vaswani et al., "Attention is all you need", 2017, section 3.2. As in Dao et al., "FlashAttention", 2022, it processes blocks of
//! queries, whose probabilities stay in the cache, and recomputes them in the backward pass.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use candle_core::{D, IndexOp, Result, Tensor};
use unisono::internals::{Level, Loop};

use super::blocks;
use super::buffer::Buffer;
use super::operation::Function;
use super::product::{Matrix, product, product_transposed};
use super::rows::{LANES, dot};
use unisono_train::Fill;

/// The number of queries in a block.
const BLOCK: usize = 32;

/// The attention of each token to itself and to earlier tokens of its sample. A row is a token. Each row of the input, `samples*context x 3*width`,
/// holds the token's query, key and value side by side, each with an equal part per head. The result is `samples*context x width`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CausalAttention {
    /// The number of tokens in a sample.
    pub(crate) context: usize,
    pub(crate) heads: usize,
}

impl CausalAttention {
    /// Returns the reciprocal of the square root of a head's size.
    fn scale(self, width: usize) -> f32 {
        ((width / self.heads) as f32).sqrt().recip()
    }

    fn heads<'a>(self, x: &'a [f32], width: usize) -> impl Iterator<Item = Head<'a>> {
        (0..self.heads).map(move |number| Head {
            x,
            width,
            offset: number * (width / self.heads),
            size: width / self.heads,
            scale: self.scale(width),
        })
    }

    /// Returns the queries of each block, starting with the last one.
    fn blocks(self) -> impl Iterator<Item = Range<usize>> {
        let ends = move |start| start..self.context.min(start + BLOCK);
        (0..self.context).step_by(BLOCK).rev().map(ends)
    }
}

/// A head of the attention in one sample.
#[derive(Clone, Copy)]
struct Head<'a> {
    x: &'a [f32],
    width: usize,
    /// The head's first column within the queries.
    offset: usize,
    size: usize,
    scale: f32,
}

impl<'a> Head<'a> {
    /// Returns these rows of the head's queries (0), keys (1) or values (2).
    fn part(self, number: usize, rows: Range<usize>) -> Matrix<'a> {
        let row = 3 * self.width;
        let first = rows.start * row + number * self.width + self.offset;
        Matrix::part(&self.x[first..], [rows.len(), self.size], row)
    }

    /// Returns these rows of the head's columns in the results of all heads.
    fn of_results(self, results: &[f32], rows: Range<usize>) -> Matrix<'_> {
        let first = rows.start * self.width + self.offset;
        Matrix::part(&results[first..], [rows.len(), self.size], self.width)
    }

    /// Writes the attention probabilities of these queries to each key up to the last query: `queries x queries.end`.
    fn probabilities(self, queries: Range<usize>, target: &mut [f32]) {
        let keys = queries.end;
        let (query, key) = (self.part(0, queries.clone()), self.part(1, 0..keys));
        product_transposed((target, keys), Fill::Set, query, key);
        Level::best().run(Softmax(target, queries, self.scale));
    }
}

impl Function for CausalAttention {
    const NAME: &'static str = "causal-attention";

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        vec![dims[0], dims[1] / 3]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let (width, context) = (dims[1] / 3, self.context);
        let samples = x.chunks(3 * width * context).zip(y.chunks_mut(width * context));
        blocks::map(samples, |(x, y)| {
            let mut probabilities = Buffer::of(BLOCK * context);
            for head in self.heads(x, width) {
                for queries in self.blocks() {
                    let (count, keys) = (queries.len(), queries.end);
                    let probabilities = &mut probabilities[..count * keys];
                    head.probabilities(queries.clone(), probabilities);
                    let target = (&mut y[queries.start * width + head.offset..], width);
                    let probabilities = Matrix::new(probabilities, count, keys);
                    product(target, Fill::Set, probabilities, head.part(2, 0..keys));
                }
            }
        });
    }

    fn backward(&self, dims: &[usize], x: &[f32], _: &[f32], dy: &[f32], dx: &mut [f32]) {
        let (width, context) = (dims[1] / 3, self.context);
        let row = 3 * width;
        let samples = x.chunks(row * context).zip(dy.chunks(width * context));
        blocks::map(samples.zip(dx.chunks_mut(row * context)), |((x, dy), dx)| {
            let [mut probabilities, mut scores] = [(); 2].map(|()| Buffer::of(BLOCK * context));
            for head in self.heads(x, width) {
                for queries in self.blocks() {
                    let (count, keys) = (queries.len(), queries.end);
                    let size = count * keys;
                    // The first block has all keys.
                    let fill = if keys == context { Fill::Set } else { Fill::Add };
                    let (probabilities, scores) = (&mut probabilities[..size], &mut scores[..size]);
                    head.probabilities(queries.clone(), probabilities);
                    let dy = head.of_results(dy, queries.clone());
                    product_transposed((scores, keys), Fill::Set, dy, head.part(2, 0..keys));
                    Level::best().run(SoftmaxDerivative(scores, queries.clone(), head.scale, probabilities));
                    let [probabilities, scores] =
                        [probabilities, scores].map(|values| Matrix::new(values, count, keys));
                    let of_query = (&mut dx[queries.start * row + head.offset..], row);
                    product(of_query, Fill::Set, scores, head.part(1, 0..keys));
                    let of_keys = (&mut dx[width + head.offset..], row);
                    product(of_keys, fill, scores.transposed(), head.part(0, queries));
                    let of_values = (&mut dx[2 * width + head.offset..], row);
                    product(of_values, fill, probabilities.transposed(), dy);
                }
            }
        });
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = (x.dim(0)?, x.dim(1)? / 3);
        let all = x.reshape((rows / self.context, self.context, 3, self.heads, width / self.heads))?;
        // samples x context x heads x size -> samples x heads x context x size
        let part = |number: usize| all.i((.., .., number))?.transpose(1, 2)?.contiguous();
        let (query, key, value) = (part(0)?, part(1)?, part(2)?);
        let unseen = |at: usize| if at % self.context > at / self.context { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<_> = (0..self.context * self.context).map(unseen).collect();
        let mask = Tensor::from_vec(mask, (self.context, self.context), x.device())?;
        let scores = (query.matmul(&key.t()?)? * f64::from(self.scale(width)))?.broadcast_add(&mask)?;
        let likely = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?.exp()?;
        let probabilities = likely.broadcast_div(&likely.sum_keepdim(D::Minus1)?)?;
        probabilities.matmul(&value)?.transpose(1, 2)?.reshape((rows, width))
    }
}

/// The scores, their queries and their factor. Replaces the scores of attended keys by their softmax after multiplication by the factor, and all other
/// scores by zero. Each query has a row of scores, and attends to the keys up to its own number.
struct Softmax<'a>(&'a mut [f32], Range<usize>, f32);

impl Loop for Softmax<'_> {
    #[inline(always)]
    fn run(self) {
        let Self(scores, queries, scale) = self;
        for (seen, row) in (queries.start + 1..).zip(scores.chunks_exact_mut(queries.end)) {
            // Whole vectors. The scores of keys that are not attended to contribute nothing.
            let end = seen.next_multiple_of(LANES).min(queries.end);
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
                    *x = exp(scale * (*x - most));
                    *sum += *x;
                }
            }
            rest.iter_mut().for_each(|x| *x = exp(scale * (*x - most)));
            let total = sums.iter().chain(&*rest).sum::<f32>();
            row[..seen].iter_mut().for_each(|x| *x /= total);
            row[seen..].fill(0.0);
        }
    }
}

/// The derivatives, the queries, the factor of their scores, and the probabilities. Replaces the derivatives with respect to probabilities by
/// derivatives with respect to scores.
struct SoftmaxDerivative<'a>(&'a mut [f32], Range<usize>, f32, &'a [f32]);

impl Loop for SoftmaxDerivative<'_> {
    #[inline(always)]
    fn run(self) {
        let Self(derivatives, queries, scale, probabilities) = self;
        let all = probabilities.chunks_exact(queries.end);
        let all = all.zip(derivatives.chunks_exact_mut(queries.end));
        for (seen, (y, dy)) in (queries.start + 1..).zip(all) {
            let (y, (dy, unseen)) = (&y[..seen], dy.split_at_mut(seen));
            let mean = dot(y, dy);
            dy.iter_mut().zip(y).for_each(|(dy, y)| *dy = scale * y * (*dy - mean));
            unseen.fill(0.0);
        }
    }
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
