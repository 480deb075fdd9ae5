//! Matrices approximated by the product of two thin ones: the passes of PowerSGD over a matrix.
//!
//! A matrix has `rows` rows of `columns` elements, row-major. A *factor* consists of `width` vectors (the rank of the product), one
//! after the other. A vector of the left factor has an element for each row, and one of the right factor for each column. So every
//! loop runs along contiguous memory.
//!
//! **Source**: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization",
//! NeurIPS 2019, algorithm 1.

use unisono::internals::{Level, Loop};

/// The partial sums of a dot product: the same number for every instruction set, so that all give the same bits, and enough to hide
/// the latency of additions.
const LANES: usize = 64;

/// Adds the gradient to the residual, and multiplies the sum by the right factor: `residual += gradient; left = residual · right`.
///
/// # Panics
/// If the sizes do not fit each other.
pub fn project(residual: &mut [f32], gradient: &[f32], right: &[f32], left: &mut [f32], width: usize) {
    check(residual.len(), left.len(), right.len(), width);
    assert_eq!(residual.len(), gradient.len(), "a residual for each element of the gradient");
    Level::best().run(Project { residual, gradient, right, left, width });
}

/// Multiplies the transposed matrix by the left factor: `right = matrixᵀ · left`.
///
/// # Panics
/// As [`project`].
pub fn project_back(matrix: &[f32], left: &[f32], right: &mut [f32], width: usize) {
    check(matrix.len(), left.len(), right.len(), width);
    right.fill(0.0);
    Level::best().run(ProjectBack { matrix, left, right, width });
}

/// Replaces the gradient by `left · sumᵀ`, where `sum` is the sum of the right factors of all nodes, and subtracts this node's
/// contribution `left · rightᵀ` from the residual.
///
/// # Panics
/// As [`project`].
pub fn reconstruct(
    residual: &mut [f32],
    gradient: &mut [f32],
    left: &[f32],
    right: &[f32],
    sum: &[f32],
    width: usize,
) {
    check(residual.len(), left.len(), right.len(), width);
    check(gradient.len(), left.len(), sum.len(), width);
    Level::best().run(Reconstruct { residual, gradient, left, right, sum, width });
}

/// Orthonormalises the vectors of a factor with the Gram-Schmidt method, applied twice, since one pass loses orthogonality for
/// nearly dependent vectors. Returns the vectors that became zero because they depend on earlier ones.
pub fn orthonormalize(factor: &mut [f32], width: usize) -> Vec<usize> {
    let size = factor.len() / width;
    let mut dependent = Vec::new();
    for index in 0..width {
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
        if !(length.is_finite() && left.is_finite()) {
            // Its direction is lost, also if only the squares of its values are too large.
            vector.fill(f32::NAN);
        } else if left > length * 1e-5 {
            // The remainder of a dependent vector consists of rounding errors.
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

#[inline(always)]
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (blocks, rest) = one.as_chunks::<LANES>();
    let (other_blocks, other_rest) = other.as_chunks::<LANES>();
    for (block, other) in blocks.iter().zip(other_blocks) {
        for lane in 0..LANES {
            sums[lane] += block[lane] * other[lane];
        }
    }
    for (sum, (value, other)) in sums.iter_mut().zip(rest.iter().zip(other_rest)) {
        *sum += value * other;
    }
    let mut lanes = LANES;
    while lanes > 1 {
        lanes /= 2;
        let (sums, others) = sums[..2 * lanes].split_at_mut(lanes);
        add_times(sums, 1.0, others);
    }
    sums[0]
}

/// Adds values times a factor.
#[inline(always)]
fn add_times(sums: &mut [f32], factor: f32, values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += factor * value;
    }
}

fn check(elements: usize, left: usize, right: usize, width: usize) {
    assert!(
        width > 0
            && elements * width * width == left * right
            && left.is_multiple_of(width)
            && right.is_multiple_of(width),
        "factors of {left} and {right} elements, and of width {width}, for a matrix of {elements} elements"
    );
}

struct Project<'a> {
    residual: &'a mut [f32],
    gradient: &'a [f32],
    right: &'a [f32],
    left: &'a mut [f32],
    width: usize,
}

impl Loop for Project<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { residual, gradient, right, left, width } = self;
        let (rows, columns) = (left.len() / width, right.len() / width);
        let both = residual.chunks_exact_mut(columns).zip(gradient.chunks_exact(columns));
        for (row, (residual, gradient)) in both.enumerate() {
            add_times(residual, 1.0, gradient);
            for (left, right) in left.chunks_exact_mut(rows).zip(right.chunks_exact(columns)) {
                left[row] = dot(residual, right);
            }
        }
    }
}

struct ProjectBack<'a> {
    matrix: &'a [f32],
    left: &'a [f32],
    right: &'a mut [f32],
    width: usize,
}

impl Loop for ProjectBack<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { matrix, left, right, width } = self;
        let (rows, columns) = (left.len() / width, right.len() / width);
        for (row, values) in matrix.chunks_exact(columns).enumerate() {
            for (left, right) in left.chunks_exact(rows).zip(right.chunks_exact_mut(columns)) {
                add_times(right, left[row], values);
            }
        }
    }
}

struct Reconstruct<'a> {
    residual: &'a mut [f32],
    gradient: &'a mut [f32],
    left: &'a [f32],
    right: &'a [f32],
    sum: &'a [f32],
    width: usize,
}

impl Loop for Reconstruct<'_> {
    #[inline(always)]
    fn run(self) {
        let Self { residual, gradient, left, right, sum, width } = self;
        let (rows, columns) = (left.len() / width, right.len() / width);
        let both = residual.chunks_exact_mut(columns).zip(gradient.chunks_exact_mut(columns));
        for (row, (residual, gradient)) in both.enumerate() {
            gradient.fill(0.0);
            let vectors =
                left.chunks_exact(rows).zip(right.chunks_exact(columns).zip(sum.chunks_exact(columns)));
            for (left, (right, sum)) in vectors {
                add_times(residual, -left[row], right);
                add_times(gradient, left[row], sum);
            }
        }
    }
}

#[cfg(test)]
mod tests;
