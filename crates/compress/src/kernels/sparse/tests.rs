//! Tests against a sort of all values.

use super::*;
use bytemuck::cast_slice;

const COUNTS: [usize; 11] = [0, 1, 4, 31, 32, 33, 255, 256, 257, 1000, 5000];

/// Returns the residual and the pairs, computed by the definition.
fn plainly(values: &[f32], most: usize) -> (Vec<f32>, Vec<Pair>) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    // A stable sort: of equal magnitudes, lower indices come first.
    order.sort_by(|&one, &other| values[other].abs().total_cmp(&values[one].abs()));
    order.truncate(most);
    order.sort_unstable();
    let pairs = order.iter().map(|&index| Pair { index: index as u32, value: values[index] }).collect();
    let mut left = values.to_vec();
    order.iter().for_each(|&index| left[index] = 0.0);
    (left, pairs)
}

fn bits(values: &[f32]) -> &[u32] {
    cast_slice(values)
}

/// The neutral element of addition, bit by bit.
const NOTHING: f32 = -0.0;

fn check(values: &[f32], most: usize) {
    let (expected_left, expected) = plainly(values, most);
    for level in Level::available() {
        let mut left = values.to_vec();
        let mut pairs = vec![Pair { index: 7, value: 7.0 }];
        let mut added = vec![NOTHING; values.len()];
        let mut largest = Largest { level, ..Largest::default() };
        largest.encode(&mut left, &mut added, most, &mut pairs).unwrap();
        let case = format!("{most} of {} at {level:?}", values.len());
        assert_eq!(pairs.len(), most.min(values.len()), "{case}");
        assert_eq!(cast_slice::<_, u32>(&pairs), cast_slice::<_, u32>(&expected), "{case}");
        assert_eq!(bits(&left), bits(&expected_left), "{case}");
        decode_add(&mut left, &pairs);
        assert_eq!(left, values, "{case}: nothing is lost");
        assert!(added.iter().all(|value| value.to_bits() == 0), "{case}");
    }
}

fn check_all(count: usize, mut value: impl FnMut() -> f32) {
    let values: Vec<f32> = (0..count).map(|_| value()).collect();
    for most in
        [0, 1, 2, count / 100, count / 10, count / 2, count.saturating_sub(1), count, count + 1, usize::MAX]
    {
        check(&values, most);
    }
}

#[test]
fn largest_magnitudes_are_selected() {
    let mut random = fastrand::Rng::with_seed(1);
    for count in COUNTS {
        check_all(count, || random.f32() - 0.5);
        check_all(count, || (random.f32() - 0.5) * 10_f32.powi(random.i32(-44..38)));
        // The whole range, including subnormal numbers.
        check_all(count, || {
            Some(f32::from_bits(random.u32(..))).filter(|value| value.is_finite()).unwrap_or(f32::MAX)
        });
        // Values that differ only in the bits of the last round.
        check_all(count, || f32::from_bits(1_f32.to_bits() | random.u32(..200)));
    }
}

#[test]
fn first_of_equal_magnitudes_are_selected() {
    let mut random = fastrand::Rng::with_seed(2);
    for count in COUNTS {
        check_all(count, || 1.0);
        check_all(count, || if random.bool() { 1.0 } else { -1.0 });
        check_all(count, || f32::from(random.i8(-2..=2)));
        check_all(count, || if random.bool() { f32::MAX } else { f32::MIN });
    }
}

#[test]
fn selection_does_not_depend_on_the_previous_array() {
    let mut random = fastrand::Rng::with_seed(5);
    for (count, level) in
        COUNTS.into_iter().flat_map(|count| Level::available().map(move |level| (count, level)))
    {
        for most in [1, count / 50, count / 3, count] {
            let mut largest = Largest { level, ..Largest::default() };
            // Arrays of the same magnitudes, a little smaller, much smaller and much larger ones, and one of equal magnitudes.
            for scale in [1.0, 1.0, 0.95, 1.05, 1e-3, 1e3, 0.0, 0.0, 1.0, 1.0] {
                let mut values: Vec<f32> = (0..count).map(|_| scale * (random.f32() - 0.5)).collect();
                if scale == 1.05 {
                    values.fill(0.5);
                }
                let (expected_left, expected) = plainly(&values, most);
                let (mut added, mut pairs) = (vec![NOTHING; count], Vec::new());
                largest.encode(&mut values, &mut added, most, &mut pairs).unwrap();
                assert_eq!(cast_slice::<_, u32>(&pairs), cast_slice::<_, u32>(&expected), "{scale}");
                assert_eq!(bits(&values), bits(&expected_left), "{most} of {count}, {scale}");
            }
        }
    }
}

#[test]
fn zeros_are_selected_to_fill_up() {
    let mut random = fastrand::Rng::with_seed(3);
    for count in COUNTS {
        check_all(count, || if random.bool() { 0.0 } else { -0.0 });
        check_all(count, || if random.u8(..50) == 0 { random.f32() } else { 0.0 });
        check_all(count, || f32::from_bits(random.u32(..3)));
    }
}

#[test]
fn hand_computed_selection() {
    let mut values = [1.0, -3.0, 2.0, 1.0, -1.0];
    let mut residual = [0.0, 0.0, 0.0, 2.0, -1.0];
    let mut pairs = Vec::new();
    Largest::default().encode(&mut residual, &mut values, 3, &mut pairs).unwrap();
    let expected = [(1, -3.0), (2, 2.0), (3, 3.0)].map(|(index, value)| Pair { index, value });
    assert_eq!(pairs, expected);
    assert_eq!((residual, values), ([1.0, 0.0, 0.0, 0.0, -2.0], [0.0; 5]));
}

#[test]
fn first_non_finite_value_is_reported() {
    let mut random = fastrand::Rng::with_seed(6);
    for level in Level::available() {
        for count in COUNTS.into_iter().filter(|&count| count > 0) {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for (index, most) in [0, count / 2, count - 1].into_iter().zip([0, 1, count]) {
                    let mut values = vec![1.0; count];
                    (values[index], values[count - 1]) = (bad, bad);
                    let mut pairs = vec![Pair { index: 7, value: 7.0 }];
                    let mut residual = vec![1.0; count];
                    let mut largest = Largest { level, ..Largest::default() };
                    largest.least = [0.5, 1.0, f32::INFINITY][random.usize(..3)];
                    let failed = largest.encode(&mut residual, &mut values, most, &mut pairs);
                    assert_eq!(failed, Err(index));
                    assert!(pairs.is_empty() && !residual[index].is_finite());
                }
            }
        }
    }
}

#[test]
fn magnitudes_from_a_threshold_are_selected() {
    let mut random = fastrand::Rng::with_seed(4);
    for (count, level) in
        COUNTS.into_iter().flat_map(|count| Level::available().map(move |level| (count, level)))
    {
        let values: Vec<f32> = (0..count).map(|_| random.i8(-5..=5).into()).collect();
        for least in [f32::from_bits(1), 2.0, 2.5, 5.0, 6.0] {
            let (mut left, mut pairs) = (values.clone(), Vec::new());
            let all = Threshold::all_from(magnitude(least));
            level.run(Select(&mut left, all, &mut pairs));
            let (mut left_at_best, mut pairs_at_best) = (values.clone(), vec![Pair { index: 7, value: 7.0 }]);
            encode_from(&mut left_at_best, least, &mut pairs_at_best);
            assert_eq!((&left_at_best, &pairs_at_best), (&left, &pairs), "{least} of {count} at {level:?}");
            let expected = values.iter().filter(|value| value.abs() >= least);
            assert!(pairs.iter().map(|pair| &pair.value).eq(expected), "{least} of {count} at {level:?}");
            let (mut sums, mut added) = (vec![NOTHING; count], values.clone());
            let counted = level.run(AddAndCountFrom(&mut sums, &mut added, magnitude(least)));
            assert_eq!(counted, pairs.len());
            assert_eq!((sums, added), (values.clone(), vec![0.0; count]));
            assert!(left.iter().all(|value| value.abs() < least));
            decode_add(&mut left, &pairs);
            assert_eq!(left, values, "nothing is lost");
        }
    }
    let mut bad = [f32::NAN, 1.0, f32::NEG_INFINITY];
    assert_eq!(count_from(&mut [0.0; 3], &mut bad, f32::MAX), 2);
}

#[test]
fn pairs_are_added() {
    let mut values = [1.0, 2.0];
    decode_add(&mut values, &[Pair { index: 1, value: 0.5 }, Pair { index: 1, value: 0.25 }]);
    assert_eq!(values, [1.0, 2.75]);
}

#[test]
#[should_panic(expected = "a pair's index is 2, of 2 values")]
fn index_out_of_range_panics() {
    decode_add(&mut [1.0, 2.0], &[Pair { index: 2, value: 1.0 }]);
}

#[test]
fn merged_pairs_are_the_sum_of_both_arrays() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut sum = vec![Pair { index: 7, value: 7.0 }];
    for count in COUNTS {
        for (of_first, of_second) in [(0, 0), (0, 3), (3, 0), (2, 2), (1, 9), (9, 9), (10, 10)] {
            let mut array = |tenths: u32| -> Vec<Pair> {
                let taken = (0..count as u32).filter(|_| random.u32(..10) < tenths);
                taken.map(|index| Pair { index, value: (index % 7) as f32 + 1.0 }).collect()
            };
            let (first, second) = (array(of_first), array(of_second));
            let mut expected = vec![0.0; count];
            decode_add(&mut expected, &first);
            decode_add(&mut expected, &second);
            merge(&first, &second, &mut sum);
            assert!(sum.windows(2).all(|two| two[0].index < two[1].index), "in ascending order, each once");
            let mut found = vec![0.0; count];
            decode_add(&mut found, &sum);
            assert_eq!(found, expected);
        }
    }
}
