//! Matrix products that write to a given place.
//!
//! Candle's own return a new tensor each, and a gradient would be written, read and written again to get into its bucket.

use std::cell::RefCell;

use super::blocks::parallelism;
use unisono_train::Fill;

/// A row-major matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// # Panics
    /// If the number of values is wrong.
    pub(super) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} x {columns}");
        Self { values, rows, columns }
    }
}

/// Computes `target = a b`, or `target += a b`; `target` is `a.rows x b.columns`, row-major.
pub(super) fn product(target: &mut [f32], fill: Fill, a: Matrix<'_>, b: Matrix<'_>) {
    let (rows, columns, inner) = (a.rows, b.columns, a.columns);
    assert_eq!(inner, b.rows, "{rows} x {inner} times {} x {columns}", b.rows);
    strided(target, fill, (rows, columns, inner), (a.values, inner, 1), (b.values, columns, 1));
}

/// Computes `target = aᵀ b`, or `target += aᵀ b`; `target` is `a.columns x b.columns`, row-major.
pub(super) fn transposed_product(target: &mut [f32], fill: Fill, a: Matrix<'_>, b: Matrix<'_>) {
    let (rows, columns, inner) = (a.columns, b.columns, a.rows);
    assert_eq!(inner, b.rows, "{rows} x {inner} times {} x {columns}", b.rows);
    strided(target, fill, (rows, columns, inner), (a.values, 1, rows), (b.values, columns, 1));
}

/// The elements of a matrix that stays in the L2 cache, so that it does not matter how it is read.
const SMALL: usize = 1 << 16;

/// Computes `target = a bᵀ`; `target` is `a.rows x b.rows`, row-major.
///
/// Where `b` is the larger matrix, as in a layer of a small batch, it is computed as `(b aᵀ)ᵀ`: then the product runs along the rows of
/// `b`. (128 x 4096 by 4096 x 4096: 116 GFLOP/s instead of 50.) The matrices to transpose for that are small. In a convolution `a` has
/// a row for each pixel, and to transpose the result would take a fifth of a step.
pub(super) fn product_transposed(target: &mut [f32], a: Matrix<'_>, b: Matrix<'_>) {
    let (rows, columns, inner) = (b.rows, a.rows, a.columns);
    assert_eq!(inner, b.columns, "{columns} x {inner} times the other way {rows} x {}", b.columns);
    if a.rows > b.rows || b.values.len() <= SMALL {
        return strided(
            target,
            Fill::Set,
            (columns, rows, inner),
            (a.values, inner, 1),
            (b.values, 1, inner),
        );
    }
    TURNED.with_borrow_mut(|turned| {
        turned.resize(target.len(), 0.0);
        strided(turned, Fill::Set, (rows, columns, inner), (b.values, inner, 1), (a.values, 1, inner));
        transpose(Matrix::new(turned, rows, columns), target);
    });
}

thread_local! {
    /// The transposed matrices, kept from step to step: fresh memory costs as much as the transposition.
    static TURNED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Transposes a matrix.
fn transpose(matrix: Matrix<'_>, target: &mut [f32]) {
    // Reads and writes of a square stay in the L1 cache.
    const SIDE: usize = 16;
    let Matrix { values, rows, columns } = matrix;
    assert_eq!(target.len(), values.len());
    for top in (0..rows).step_by(SIDE) {
        for left in (0..columns).step_by(SIDE) {
            for column in left..columns.min(left + SIDE) {
                for row in top..rows.min(top + SIDE) {
                    target[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
}

/// Values, with the distance between neighbouring rows and between neighbouring columns.
type Strided<'a> = (&'a [f32], usize, usize);

/// `target` is `rows x columns`, row-major; `a` is `rows x inner`, `b` is `inner x columns`.
fn strided(
    target: &mut [f32],
    fill: Fill,
    (rows, columns, inner): (usize, usize, usize),
    a: Strided<'_>,
    b: Strided<'_>,
) {
    assert_eq!(target.len(), rows * columns, "the product of {rows} x {inner} and {inner} x {columns}");
    let reaches = |(_, row, column): Strided<'_>, rows: usize, columns: usize| {
        if rows * columns == 0 { 0 } else { (rows - 1) * row + (columns - 1) * column + 1 }
    };
    assert!(reaches(a, rows, inner) <= a.0.len() && reaches(b, inner, columns) <= b.0.len());
    let alpha = if fill == Fill::Add { 1.0 } else { 0.0 };
    // SAFETY: the three matrices lie within their slices, as was just asserted; `target` is borrowed mutably, so it overlaps
    // none of the others, and its elements are distinct.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            target.as_mut_ptr(),
            1,
            columns as isize,
            fill == Fill::Add,
            a.0.as_ptr(),
            a.2 as isize,
            a.1 as isize,
            b.0.as_ptr(),
            b.2 as isize,
            b.1 as isize,
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

    // Small integers: their products are exact.
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
    fn products_are_as_by_definition() {
        for (rows, inner, columns) in [(1, 1, 1), (3, 5, 2), (17, 33, 40), (128, 70, 19)] {
            let (a, b) = (numbers(rows * inner, 7), numbers(inner * columns, 3));
            let expected =
                naive(rows, columns, inner, |row, column, at| a[row * inner + at] * b[at * columns + column]);
            let (left, right) = (Matrix::new(&a, rows, inner), Matrix::new(&b, inner, columns));
            let mut found = vec![f32::NAN; rows * columns];
            product(&mut found, Fill::Set, left, right);
            assert_eq!(found, expected);
            product(&mut found, Fill::Add, left, right);
            assert!(found.iter().zip(&expected).all(|(found, expected)| *found == 2.0 * expected));

            let (mut a_turned, mut b_turned) = (vec![0.0; a.len()], vec![0.0; b.len()]);
            transpose(left, &mut a_turned);
            transpose(right, &mut b_turned);
            transposed_product(&mut found, Fill::Set, Matrix::new(&a_turned, inner, rows), right);
            assert_eq!(found, expected);
            product_transposed(&mut found, left, Matrix::new(&b_turned, columns, inner));
            assert_eq!(found, expected);
        }
    }
}
