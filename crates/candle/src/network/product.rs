//! Matrix products that write to a given location.
//!
//! Candle's own products return new tensors, so a gradient would be written, read and written again to reach its bucket.

use super::blocks::parallelism;
use super::buffer::Buffer;
use unisono_train::Fill;

/// A matrix of row-major values, which may be a range of columns of a wider one, or its transpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    shape: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    pub(super) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} x {columns}");
        Self { values, shape: [rows, columns], strides: [columns, 1] }
    }

    /// Returns a matrix that starts with the first of these values, with this stride between rows.
    pub(super) fn part(values: &'a [f32], shape: [usize; 2], row: usize) -> Self {
        assert!(reach(shape, [row, 1]) <= values.len(), "a part of {} x {}", shape[0], shape[1]);
        Self { values, shape, strides: [row, 1] }
    }

    pub(super) fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.shape, self.strides);
        Self { shape: [columns, rows], strides: [column, row], ..self }
    }
}

/// Values to write, and the stride between rows.
pub(super) type Target<'a> = (&'a mut [f32], usize);

/// The maximum number of elements of a matrix that stays in the L2 cache, where the access order does not matter.
const SMALL: usize = 1 << 16;

/// Computes `target = a bᵀ`, or `target += a bᵀ`.
///
/// If `b` is the larger matrix, as in a layer of a small batch, this computes `(b aᵀ)ᵀ`: the product then runs along the rows of `b`. (128 x 4096 by
/// 4096 x 4096: 116 GFLOP/s instead of 50.) The matrices to transpose are then small. In a convolution, `a` has a row for each pixel, and transposing
/// the result would take a fifth of a step.
pub(super) fn product_transposed(target: Target<'_>, fill: Fill, a: Matrix<'_>, b: Matrix<'_>) {
    let ([rows, _], [columns, inner]) = (a.shape, b.shape);
    if rows > columns || columns * inner <= SMALL {
        return product(target, fill, a, b.transposed());
    }
    let mut turned = Buffer::of(columns * rows);
    product((&mut turned, rows), Fill::Set, b, a.transposed());
    transpose(Matrix::new(&turned, columns, rows), fill, target);
}

fn transpose(matrix: Matrix<'_>, fill: Fill, (target, distance): Target<'_>) {
    // Reads and writes of a square stay in the L1 cache.
    const SIDE: usize = 16;
    let Matrix { values, shape: [rows, columns], strides: [down, along] } = matrix;
    for top in (0..rows).step_by(SIDE) {
        for left in (0..columns).step_by(SIDE) {
            for column in left..columns.min(left + SIDE) {
                for row in top..rows.min(top + SIDE) {
                    let value = values[row * down + column * along];
                    let target = &mut target[column * distance + row];
                    *target = if fill == Fill::Add { *target + value } else { value };
                }
            }
        }
    }
}

/// Returns the number of values that a matrix with these strides spans.
fn reach([rows, columns]: [usize; 2], [row, column]: [usize; 2]) -> usize {
    if rows * columns == 0 { 0 } else { (rows - 1) * row + (columns - 1) * column + 1 }
}

/// Computes `target = a b`, or `target += a b`.
pub(super) fn product((target, row): Target<'_>, fill: Fill, a: Matrix<'_>, b: Matrix<'_>) {
    let ([rows, inner], [others, columns]) = (a.shape, b.shape);
    assert_eq!(inner, others, "{rows} x {inner} times {others} x {columns}");
    assert!(row >= columns, "rows of {columns} values at a distance of {row}");
    assert!(reach([rows, columns], [row, 1]) <= target.len(), "a target of {rows} x {columns}");
    assert!([a, b].iter().all(|part| reach(part.shape, part.strides) <= part.values.len()));
    let alpha = if fill == Fill::Add { 1.0 } else { 0.0 };
    // SAFETY: the three matrices lie within their slices, as was just asserted. `target` is borrowed mutably, so it overlaps none of the others, and
    // its elements are distinct.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            target.as_mut_ptr(),
            1,
            row as isize,
            fill == Fill::Add,
            a.values.as_ptr(),
            a.strides[1] as isize,
            a.strides[0] as isize,
            b.values.as_ptr(),
            b.strides[1] as isize,
            b.strides[0] as isize,
            alpha,
            1.0,
            false,
            false,
            false,
            parallelism(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Products of small integers are exact.
    fn numbers(count: usize, step: usize) -> Vec<f32> {
        (0..count).map(|at| (at * step % 11) as f32 - 5.0).collect()
    }

    fn naive(
        rows: usize,
        columns: usize,
        inner: usize,
        product: impl Fn(usize, usize, usize) -> f32,
    ) -> Vec<f32> {
        let places = (0..rows * columns).map(|at| (at / columns, at % columns));
        places.map(|(row, column)| (0..inner).map(|at| product(row, column, at)).sum()).collect()
    }

    #[test]
    fn products_match_their_definitions() {
        for (rows, inner, columns) in [(1, 1, 1), (3, 5, 2), (17, 33, 40), (128, 70, 19), (40, 300, 260)] {
            let (a, b) = (numbers(rows * inner, 7), numbers(inner * columns, 3));
            let expected =
                naive(rows, columns, inner, |row, column, at| a[row * inner + at] * b[at * columns + column]);
            let (left, right) = (Matrix::new(&a, rows, inner), Matrix::new(&b, inner, columns));
            let (mut a_turned, mut b_turned) = (vec![0.0; a.len()], vec![0.0; b.len()]);
            transpose(left, Fill::Set, (&mut a_turned, rows));
            transpose(right, Fill::Set, (&mut b_turned, inner));
            let (left_turned, right_turned) =
                (Matrix::new(&a_turned, inner, rows), Matrix::new(&b_turned, columns, inner));
            // The target may be a range of columns of a wider matrix, whose other columns stay unchanged.
            for wider in [0, 3] {
                let row = columns + wider;
                let mut found = vec![7.0; rows * row];
                let mut check = |compute: &dyn Fn(Target<'_>, Fill)| {
                    for (fill, times) in [(Fill::Set, 1.0), (Fill::Add, 2.0)] {
                        compute((&mut found, row), fill);
                        for (found, expected) in found.chunks(row).zip(expected.chunks(columns)) {
                            let (found, beside) = found.split_at(columns);
                            assert!(found.iter().zip(expected).all(|(found, one)| *found == times * one));
                            assert!(beside.iter().all(|value| *value == 7.0));
                        }
                    }
                };
                check(&|target, fill| product(target, fill, left, right));
                check(&|target, fill| product(target, fill, left_turned.transposed(), right));
                check(&|target, fill| product_transposed(target, fill, left, right_turned));
            }
        }
    }
}
