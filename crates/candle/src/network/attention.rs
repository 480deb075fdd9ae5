//! Causal attention as one operation.
//!
//! **Source**: Vaswani et al., "Attention is all you need", 2017, section 3.2. As in Dao et al., "FlashAttention", 2022, it processes blocks of
//! queries, whose probabilities stay in the cache, and recomputes them in the backward pass.

use std::ops::Range;

use candle_core::{D, IndexOp, Result, Tensor};

use super::blocks;
use super::buffer::Buffer;
use super::operation::Function;
use super::product::{Matrix, product, product_transposed, transposed_product};
use super::softmax::Rows;
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
    fn width(dims: &[usize]) -> usize {
        dims[1] / 3
    }

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
        self.scores(&queries).softmax(target);
    }

    /// Returns the layout of these queries' scores for the softmax.
    fn scores(self, queries: &Range<usize>) -> Rows {
        Rows { first: queries.start, keys: queries.end, scale: self.scale }
    }
}

impl Function for CausalAttention {
    const NAME: &'static str = "causal-attention";

    fn shape(&self, dims: &[usize]) -> Vec<usize> {
        vec![dims[0], Self::width(dims)]
    }

    fn forward(&self, dims: &[usize], x: &[f32], y: &mut [f32]) {
        let (width, context) = (Self::width(dims), self.context);
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
        let (width, context) = (Self::width(dims), self.context);
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
                    head.scores(&queries).before_softmax(probabilities, scores);
                    let [probabilities, scores] =
                        [probabilities, scores].map(|values| Matrix::new(values, count, keys));
                    let of_query = (&mut dx[queries.start * row + head.offset..], row);
                    product(of_query, Fill::Set, scores, head.part(1, 0..keys));
                    let of_keys = (&mut dx[width + head.offset..], row);
                    transposed_product(of_keys, fill, scores, head.part(0, queries));
                    let of_values = (&mut dx[2 * width + head.offset..], row);
                    transposed_product(of_values, fill, probabilities, dy);
                }
            }
        });
    }

    fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = (x.dim(0)?, Self::width(x.dims()));
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
