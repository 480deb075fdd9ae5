//! Tests of the passes against plain loops, and of the approximation of a matrix by its factors.

use super::*;

/// Returns inexact values in [-1, 1).
fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

/// Sizes that are and are not multiples of the vector length, with every kind of group.
const CASES: [(usize, usize, usize); 6] =
    [(1, 1, 1), (5, 3, 2), (8, 32, 4), (33, 17, 3), (19, 50, 7), (64, 10, 9)];

fn assert_near(found: &[f32], expected: impl IntoIterator<Item = f64>) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-4, "{index}: {found} and {expected}");
    }
}

/// Returns a sum over all terms.
fn sum_of(count: usize, term: impl Fn(usize) -> f64) -> f64 {
    (0..count).map(term).sum()
}

#[test]
fn passes_are_products_of_matrices() {
    for (rows, columns, width) in CASES {
        let [gradient, before] = [1, 2].map(|seed| random(rows * columns, seed));
        let [right, sum] = [3, 4].map(|seed| random(width * columns, seed));
        let mut residual = before.clone();
        let mut left = vec![f32::NAN; width * rows];
        project(&mut residual, &gradient, &right, &mut left, width);
        let at = |values: &[f32], index: usize| f64::from(values[index]);
        assert_near(&residual, (0..rows * columns).map(|index| at(&before, index) + at(&gradient, index)));
        let product = |index: usize| {
            let (vector, row) = (index / rows, index % rows);
            sum_of(columns, |column| {
                at(&residual, row * columns + column) * at(&right, vector * columns + column)
            })
        };
        assert_near(&left, (0..width * rows).map(product));

        let mut back = vec![f32::NAN; width * columns];
        project_back(&residual, &left, &mut back, width);
        let product = |index: usize| {
            let (vector, column) = (index / columns, index % columns);
            sum_of(rows, |row| at(&residual, row * columns + column) * at(&left, vector * rows + row))
        };
        let scale = back.iter().fold(1.0_f32, |most, value| most.max(value.abs()));
        let scaled: Vec<_> = back.iter().map(|value| value / scale).collect();
        assert_near(&scaled, (0..width * columns).map(|index| product(index) / f64::from(scale)));

        let (mut left_over, mut decoded) = (residual.clone(), gradient);
        let left = random(width * rows, 5);
        reconstruct(&mut left_over, &mut decoded, &left, &right, &sum, width);
        let product = |factor: &[f32], index: usize| {
            let (row, column) = (index / columns, index % columns);
            sum_of(width, |vector| at(&left, vector * rows + row) * at(factor, vector * columns + column))
        };
        assert_near(&decoded, (0..rows * columns).map(|index| product(&sum, index)));
        let expected = (0..rows * columns).map(|index| at(&residual, index) - product(&right, index));
        assert_near(&left_over, expected);
    }
}

#[test]
fn all_levels_give_the_same_bits() {
    for (rows, columns, width) in CASES {
        let gradient = &random(rows * columns, 1)[..];
        let right = &random(width * columns, 2)[..];
        let results = Level::available().map(|level| {
            let (residual, left) = (&mut random(rows * columns, 3)[..], &mut vec![0.0; width * rows][..]);
            level.run(Project { residual, gradient, right, left, width });
            let back = &mut vec![0.0; width * columns][..];
            level.run(ProjectBack { matrix: residual, left, right: back, width });
            let decoded = &mut vec![0.0; rows * columns][..];
            level.run(Reconstruct { residual, gradient: decoded, left, right, sum: back, width });
            [&*residual, left, back, decoded].concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]), "{rows} x {columns}, width {width}");
    }
}

#[test]
fn orthonormalisation_preserves_the_span() {
    let (size, width) = (37, 5);
    let mut factor = random(size * width, 9);
    // The third depends on the first two.
    for index in 0..size {
        factor[2 * size + index] = 3.0 * factor[index] - factor[size + index];
    }
    assert_eq!(orthonormalize(&mut factor, width), [2]);
    for (one, other) in (0..width).flat_map(|one| (0..width).map(move |other| (one, other))) {
        let expected = f32::from(u8::from(one == other && one != 2));
        let found = dot(&factor[one * size..][..size], &factor[other * size..][..size]);
        assert!((found - expected).abs() < 1e-5, "{one}, {other}: {found}");
    }
}

/// A matrix of low rank is sent completely after a few rounds, since the power iteration converges to its space.
#[test]
fn residual_of_a_low_rank_matrix_vanishes() {
    let (rows, columns, width) = (30, 20, 3);
    let [left, right] = [(width * rows, 1), (width * columns, 2)].map(|(count, seed)| random(count, seed));
    let element = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        (0..width).map(|vector| left[vector * rows + row] * right[vector * columns + column]).sum::<f32>()
    };
    let matrix: Vec<f32> = (0..rows * columns).map(element).collect();
    let (mut residual, mut factor) = (vec![0.0; rows * columns], random(width * columns, 3));
    let (mut decoded, mut found) = (matrix.clone(), vec![0.0; width * rows]);
    project(&mut residual, &matrix, &factor, &mut found, width);
    assert!(orthonormalize(&mut found, width).is_empty());
    project_back(&residual, &found, &mut factor, width);
    reconstruct(&mut residual, &mut decoded, &found, &factor, &factor, width);
    assert!(residual.iter().all(|value| value.abs() < 1e-4));
    assert_near(&decoded, matrix.iter().map(|&value| f64::from(value)));
}
