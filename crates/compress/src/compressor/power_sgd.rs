//! Matrices as products of two thin ones.

use std::ops::Range;

use unisono::{Communicator, ReduceOp, Result, copy};

use super::Encoder;
use crate::kernels::low_rank::{orthonormalize, project, project_back, reconstruct};

/// PowerSGD's state: the right factors, which start the next power iteration where the last one ended.
#[derive(Debug)]
pub(super) struct PowerSgd {
    rank: usize,
    matrices: Vec<Matrix>,
    /// The ranges that are sent uncompressed.
    plain: Vec<Range<usize>>,
    /// The left factors of all matrices, then all elements that are sent uncompressed.
    left: Vec<f32>,
    /// This leader's right factors of all matrices.
    right: Vec<f32>,
    /// The sum of the right factors of all leaders, from which the next iteration starts.
    sum: Vec<f32>,
    /// The size of the right factor of each tensor; 0 if it is sent uncompressed.
    state_sizes: Vec<usize>,
}

#[derive(Debug)]
struct Matrix {
    values: Range<usize>,
    left: Range<usize>,
    right: Range<usize>,
}

impl PowerSgd {
    pub(super) fn new(rank: usize, shapes: &[&[usize]]) -> Self {
        let (mut matrices, mut plain, mut state_sizes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut values, mut left, mut right) = (0, 0, 0);
        for shape in shapes {
            let count = shape.iter().product::<usize>();
            let rows = shape.first().copied().unwrap_or(1).max(1);
            let columns = count / rows;
            let range = values..values + count;
            values = range.end;
            if 2 * rank * (rows + columns) > count {
                plain.push(range);
                state_sizes.push(0);
                continue;
            }
            let factors = (left + rank * rows, right + rank * columns);
            matrices.push(Matrix { values: range, left: left..factors.0, right: right..factors.1 });
            (left, right) = factors;
            state_sizes.push(rank * columns);
        }
        left += plain.iter().map(Range::len).sum::<usize>();
        let mut sum = vec![0.0; right];
        // Any start that is identical on all ranks is valid.
        randomize(&mut sum, 0);
        Self { rank, matrices, plain, left: vec![0.0; left], right: vec![0.0; right], sum, state_sizes }
    }

    /// Returns the numbers of elements of the two successive sums.
    pub(super) fn sums(&self) -> [usize; 2] {
        [self.left.len(), self.sum.len()]
    }

    /// Returns the ranges that are sent uncompressed, and their places in `left`.
    fn plain(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let mut start = self.matrices.last().map_or(0, |last| last.left.end);
        self.plain.clone().into_iter().map(move |range| {
            let place = start..start + range.len();
            start = place.end;
            (range, place)
        })
    }
}

impl Encoder for PowerSgd {
    fn all_reduce(
        &mut self,
        leaders: &mut Communicator,
        values: &mut [f32],
        residual: &mut [f32],
    ) -> Result<bool> {
        for Matrix { values: range, left, right } in &self.matrices {
            let (residual, gradient) = (&mut residual[range.clone()], &values[range.clone()]);
            project(residual, gradient, &self.sum[right.clone()], &mut self.left[left.clone()], self.rank);
        }
        for (range, place) in self.plain() {
            // Another encoding may have left a residual.
            let both = values[range.clone()].iter().zip(&mut residual[range]);
            let sent = self.left[place].iter_mut().zip(both);
            sent.for_each(|(sent, (value, unsent))| *sent = value + std::mem::take(unsent));
        }
        leaders.all_reduce(&mut self.left, ReduceOp::Sum)?;
        for (range, place) in self.plain() {
            copy(&mut values[range], &self.left[place]);
        }
        let mut lost = Vec::new();
        for Matrix { values: range, left, right } in &self.matrices {
            let left = &mut self.left[left.clone()];
            let columns = right.len() / self.rank;
            let dependent = orthonormalize(left, self.rank);
            lost.extend(dependent.into_iter().map(|vector| {
                let start = right.start + vector * columns;
                start..start + columns
            }));
            project_back(&residual[range.clone()], left, &mut self.right[right.clone()], self.rank);
        }
        copy(&mut self.sum, &self.right);
        leaders.all_reduce(&mut self.sum, ReduceOp::Sum)?;
        // A product with a non-finite value is not finite.
        let is_finite = [&self.left, &self.sum].into_iter().flatten().all(|value| value.is_finite());
        for Matrix { values: range, left, right } in &self.matrices {
            let (residual, gradient) = (&mut residual[range.clone()], &mut values[range.clone()]);
            let (own, sum) = (&self.right[right.clone()], &self.sum[right.clone()]);
            reconstruct(residual, gradient, &self.left[left.clone()], own, sum, self.rank);
        }
        // A vector that was lost would stay zero for ever.
        for vector in lost {
            let seed = vector.start as u64 + 1;
            randomize(&mut self.sum[vector], seed);
        }
        Ok(is_finite)
    }

    fn state(&mut self) -> Vec<&mut [f32]> {
        let mut rest = &mut self.sum[..];
        let sizes = self.state_sizes.iter();
        sizes.map(|&size| rest.split_off_mut(..size).expect("the sum is of this size")).collect()
    }
}

/// Fills values with random directions, to which a gradient is unlikely to be orthogonal.
fn randomize(values: &mut [f32], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    values.iter_mut().for_each(|value| *value = random.f32() - 0.5);
}
