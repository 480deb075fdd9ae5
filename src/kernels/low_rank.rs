//! Matrices approximated by the product of two thin ones: the passes of PowerSGD over a matrix.
//!
//! A matrix has `rows` rows of `columns` elements, row-major. A *factor* is `rank` vectors, one after the other: the left one's have
//! an element for each row, the right one's for each column. So every loop runs along contiguous memory.
//!
//! **Source**: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
//! NeurIPS 2019, algorithm 1.

use std::ops::Range;

use super::lanes::Lanes;
use super::level::{Level, Pass};

/// Partial sums of a dot product. As many at every level, so that all give the same bits.
const LANES: usize = 16;
/// Vectors of a factor, and rows of a matrix, that are worked on at a time: they fit the processor's registers.
const GROUP: usize = 4;

/// Calls a function with its number of vectors as a constant, for groups of the vectors `0..rank`.
macro_rules! by_groups {
    ($rank:expr, $vectors:ident => $function:ident($($argument:expr),*)) => {
        for start in (0..$rank).step_by(GROUP) {
            let $vectors = start..$rank.min(start + GROUP);
            match $vectors.len() {
                1 => $function::<1>($($argument),*),
                2 => $function::<2>($($argument),*),
                3 => $function::<3>($($argument),*),
                _ => $function::<GROUP>($($argument),*),
            }
        }
    };
}

/// Adds the gradient to the residual, and multiplies the sum by the right factor: `residual += gradient; left = residual · right`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn project(residual: &mut [f32], gradient: &[f32], right: &[f32], left: &mut [f32], rank: usize) {
    check(residual.len(), left.len(), right.len(), rank);
    assert_eq!(residual.len(), gradient.len(), "a residual for each element of the gradient");
    let beside = Projected { gradient, right, left, rank };
    Level::best().compiled::<Project>()(bytemuck::cast_slice_mut(residual), beside);
}

/// Multiplies the transposed matrix by the left factor: `right = matrixᵀ · left`.
///
/// # Panics
/// As [`project`].
pub fn project_back(matrix: &[f32], left: &[f32], right: &mut [f32], rank: usize) {
    check(matrix.len(), left.len(), right.len(), rank);
    right.fill(0.0);
    Level::best().compiled::<ProjectBack>()(bytemuck::cast_slice_mut(right), Back { matrix, left, rank });
}

/// Replaces the gradient by `left · sumᵀ`, where `sum` is the sum of the right factors of all nodes, and subtracts from the residual
/// what this node has given: `left · rightᵀ`.
///
/// # Panics
/// As [`project`].
pub fn reconstruct(
    residual: &mut [f32],
    gradient: &mut [f32],
    left: &[f32],
    right: &[f32],
    sum: &[f32],
    rank: usize,
) {
    check(residual.len(), left.len(), right.len(), rank);
    check(gradient.len(), left.len(), sum.len(), rank);
    gradient.fill(0.0);
    let beside = Reconstructed { gradient, left, right, sum, rank };
    Level::best().compiled::<Reconstruct>()(bytemuck::cast_slice_mut(residual), beside);
}

/// Makes the vectors of a factor orthonormal, by Gram and Schmidt's method, twice: once loses orthogonality where vectors are nearly
/// dependent. Returns which are zero because they depend on those before them.
pub fn orthonormalize(factor: &mut [f32], rank: usize) -> Vec<usize> {
    let size = factor.len() / rank;
    let mut dependent = Vec::new();
    for index in 0..rank {
        let (before, rest) = factor.split_at_mut(index * size);
        let vector = &mut rest[..size];
        let length = norm(vector);
        for _ in 0..2 {
            for before in before.chunks_exact(size) {
                let share = dot(vector, before);
                vector.iter_mut().zip(before).for_each(|(value, before)| *value -= share * before);
            }
        }
        let left = norm(vector);
        // What remains of a dependent vector is rounding errors.
        if left > length * 1e-5 || left.is_nan() {
            vector.iter_mut().for_each(|value| *value /= left);
        } else {
            vector.fill(0.0);
            dependent.push(index);
        }
    }
    dependent
}

fn norm(vector: &[f32]) -> f32 {
    dot(vector, vector).sqrt()
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    dots(one, [other])[0]
}

fn check(elements: usize, left: usize, right: usize, rank: usize) {
    assert!(
        rank > 0
            && elements * rank * rank == left * right
            && left.is_multiple_of(rank)
            && right.is_multiple_of(rank),
        "factors of {left} and {right} elements, and of rank {rank}, for a matrix of {elements} elements"
    );
}

/// These vectors of a factor.
#[inline(always)]
fn vectors<const K: usize>(factor: &[f32], size: usize, which: Range<usize>) -> [&[f32]; K] {
    std::array::from_fn(|index| &factor[(which.start + index) * size..][..size])
}

/// The dot products of a row with some vectors.
#[inline(always)]
fn dots<const K: usize>(row: &[f32], vectors: [&[f32]; K]) -> [f32; K] {
    let mut sums = [[0.0; LANES]; K];
    let (row, rest) = row.as_chunks::<LANES>();
    let whole = vectors.map(|vector| &vector.as_chunks::<LANES>().0[..row.len()]);
    for (index, row) in row.iter().enumerate() {
        for (sums, vector) in sums.iter_mut().zip(whole) {
            for lane in 0..LANES {
                sums[lane] += row[lane] * vector[index][lane];
            }
        }
    }
    for (sums, vector) in sums.iter_mut().zip(vectors) {
        for (sum, (value, other)) in sums.iter_mut().zip(rest.iter().zip(&vector[row.len() * LANES..])) {
            *sum += value * other;
        }
    }
    sums.map(|sums| sums.into_iter().fold(0.0, |sum, lane| sum + lane))
}

struct Projected<'a> {
    gradient: &'a [f32],
    right: &'a [f32],
    left: &'a mut [f32],
    rank: usize,
}

#[derive(Debug)]
struct Project;

impl Pass for Project {
    type Beside<'a> = Projected<'a>;

    #[inline(always)]
    fn run<L: Lanes>(_: L, residual: &mut [u8], Projected { gradient, right, left, rank }: Projected<'_>) {
        let residual: &mut [f32] = bytemuck::cast_slice_mut(residual);
        let (rows, columns) = (left.len() / rank, right.len() / rank);
        let both = residual.chunks_exact_mut(columns).zip(gradient.chunks_exact(columns));
        for (row, (residual, gradient)) in both.enumerate() {
            residual.iter_mut().zip(gradient).for_each(|(residual, gradient)| *residual += gradient);
            by_groups!(rank, which => project_row(residual, right, left, (row, rows), which));
        }
    }
}

#[inline(always)]
fn project_row<const K: usize>(
    values: &[f32],
    right: &[f32],
    left: &mut [f32],
    (row, rows): (usize, usize),
    which: Range<usize>,
) {
    let products = dots::<K>(values, vectors(right, values.len(), which.clone()));
    for (vector, product) in which.zip(products) {
        left[vector * rows + row] = product;
    }
}

struct Back<'a> {
    matrix: &'a [f32],
    left: &'a [f32],
    rank: usize,
}

#[derive(Debug)]
struct ProjectBack;

impl Pass for ProjectBack {
    type Beside<'a> = Back<'a>;

    #[inline(always)]
    fn run<L: Lanes>(_: L, right: &mut [u8], Back { matrix, left, rank }: Back<'_>) {
        let right: &mut [f32] = bytemuck::cast_slice_mut(right);
        let (rows, columns) = (left.len() / rank, right.len() / rank);
        for (group, matrix) in matrix.chunks(GROUP * columns).enumerate() {
            let first = group * GROUP;
            for (vector, right) in right.chunks_exact_mut(columns).enumerate() {
                let factors = &left[vector * rows + first..][..matrix.len() / columns];
                match *factors {
                    [a, b, c, d] => add_rows(right, matrix, [a, b, c, d]),
                    _ => {
                        for (row, &factor) in matrix.chunks_exact(columns).zip(factors) {
                            add_rows(right, row, [factor]);
                        }
                    }
                }
            }
        }
    }
}

/// Adds some rows, each times its factor.
#[inline(always)]
fn add_rows<const K: usize>(sum: &mut [f32], rows: &[f32], factors: [f32; K]) {
    let rows: [&[f32]; K] = vectors(rows, sum.len(), 0..K);
    for (column, sum) in sum.iter_mut().enumerate() {
        for (row, factor) in rows.into_iter().zip(factors) {
            *sum += factor * row[column];
        }
    }
}

struct Reconstructed<'a> {
    gradient: &'a mut [f32],
    left: &'a [f32],
    right: &'a [f32],
    sum: &'a [f32],
    rank: usize,
}

#[derive(Debug)]
struct Reconstruct;

impl Pass for Reconstruct {
    type Beside<'a> = Reconstructed<'a>;

    #[inline(always)]
    fn run<L: Lanes>(_: L, residual: &mut [u8], beside: Reconstructed<'_>) {
        let Reconstructed { gradient, left, right, sum, rank } = beside;
        let residual: &mut [f32] = bytemuck::cast_slice_mut(residual);
        let (rows, columns) = (left.len() / rank, right.len() / rank);
        let both = residual.chunks_exact_mut(columns).zip(gradient.chunks_exact_mut(columns));
        for (row, (residual, gradient)) in both.enumerate() {
            by_groups!(rank, which => reconstruct_row((residual, gradient), left, (right, sum), (row, rows), which));
        }
    }
}

#[inline(always)]
fn reconstruct_row<const K: usize>(
    (residual, gradient): (&mut [f32], &mut [f32]),
    left: &[f32],
    (right, sum): (&[f32], &[f32]),
    (row, rows): (usize, usize),
    which: Range<usize>,
) {
    let columns = residual.len();
    let factors: [f32; K] = std::array::from_fn(|index| left[(which.start + index) * rows + row]);
    let right: [&[f32]; K] = vectors(right, columns, which.clone());
    let sum: [&[f32]; K] = vectors(sum, columns, which);
    for (column, (residual, gradient)) in residual.iter_mut().zip(gradient).enumerate() {
        for (index, factor) in factors.into_iter().enumerate() {
            *residual -= factor * right[index][column];
            *gradient += factor * sum[index][column];
        }
    }
}

#[cfg(test)]
mod tests;
