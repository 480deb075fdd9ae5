//! Tests that the decoded value and the residual add up to the value, with the same bits for every instruction set.

use super::codes::Int;
use super::*;

const COUNTS: [usize; 9] = [0, 1, 15, 255, 256, 257, 511, 512, 1000];

/// Rounding to the nearest value uses none of them.
const UNUSED: [u64; 0] = [];

/// Returns values like gradients: of many magnitudes, some of them zero.
fn gradients(count: usize, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut value = || match random.u8(..8) {
        0 => 0.0,
        1 => -0.0,
        draw => (random.f32() - 0.5) * 10_f32.powi(-i32::from(draw)),
    };
    (0..count).map(|_| value()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Encodes and decodes with every instruction set, compares with the definition, and returns the decoded values.
fn decoded<C: Code>(values: &[f32]) -> Vec<f32> {
    let mut results = Level::available().map(|level| {
        let mut left = values.to_vec();
        let mut encoded = vec![0xa5; encoded_bytes::<C>(values.len())];
        level.run(Encode::<C>(&mut left, &mut encoded, Draws::of(&UNUSED), PhantomData)).unwrap();
        let mut decoded = vec![f32::NAN; values.len()];
        level.run(Decode::<C, false>(&mut decoded, &encoded, PhantomData));
        let mut sums = values.to_vec();
        level.run(Decode::<C, true>(&mut sums, &encoded, PhantomData));
        for (index, &value) in values.iter().enumerate() {
            let (decoded, left, sum) = (decoded[index], left[index], sums[index]);
            let case = format!("{value:e} at {index} of {} at {level:?}", values.len());
            assert!(decoded.is_finite() && left.is_finite(), "{case}: {decoded:e} {left:e}");
            assert_eq!(left.to_bits(), (value - decoded).to_bits(), "{case}: the residual is the difference");
            assert!(
                (decoded + left - value).abs() <= value.abs().max(decoded.abs()) * f32::EPSILON,
                "{case}: {decoded:e} {left:e}"
            );
            assert_eq!(sum.to_bits(), (value + decoded).to_bits(), "{case}: decoded and added");
        }
        (encoded, decoded, bits(&left))
    });
    let (encoded, decoded, left) = results.next().unwrap();
    for (also_encoded, also_decoded, also_left) in results {
        assert_eq!(also_encoded, encoded);
        assert_eq!(bits(&also_decoded), bits(&decoded));
        assert_eq!(also_left, left);
    }
    decoded
}

/// Returns the mean of the values with this sign bit that are far from subnormal.
fn mean(values: &[f32], is_negative: bool) -> f64 {
    let those = values.iter().filter(|value| value.is_sign_negative() == is_negative);
    let sum: f64 = those.clone().map(|&value| f64::from(value)).sum();
    sum / those.count() as f64
}

#[test]
fn decoded_value_and_residual_sum_to_the_value() {
    fn check<const BITS: usize>(values: &[f32]) {
        let most = ((1 << (BITS - 1)) - 1) as f32;
        let decoded = decoded::<Int<BITS, false>>(values);
        for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
            let largest = values.iter().fold(0_f32, |largest, value| largest.max(value.abs()));
            // Half a step, and rounding errors.
            let most = largest / most * 0.500_05;
            for (value, decoded) in values.iter().zip(decoded) {
                assert!((value - decoded).abs() <= most, "{value:e} became {decoded:e}, of {largest:e}");
            }
        }
    }
    for count in COUNTS {
        for seed in 0..20 {
            let values = gradients(count, seed);
            check::<8>(&values);
            check::<4>(&values);
        }
    }
}

#[test]
fn one_bit_decodes_to_the_mean_of_its_sign() {
    for (count, seed) in COUNTS.into_iter().flat_map(|count| (0..20).map(move |seed| (count, seed))) {
        let values = gradients(count, seed);
        let decoded = decoded::<OneBit>(&values);
        for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
            for (value, &decoded) in values.iter().zip(decoded) {
                let mean = mean(values, value.is_sign_negative());
                let error = (f64::from(decoded) - mean).abs();
                assert!(error <= mean.abs() * 1e-5, "{value:e} became {decoded:e}, not {mean:e}");
            }
        }
    }
}

#[test]
fn encoded_bytes_match_the_specification() {
    let mut values = vec![0.0; 257];
    (values[0], values[1], values[2], values[3], values[256]) = (254.0, -254.0, 3.0, -5.1, -127.0);
    let mut encoded = vec![0; encoded_bytes::<Int8>(257)];
    encode::<Int8>(&mut values, &mut encoded, Draws::of(&UNUSED)).unwrap();
    assert_eq!(encoded.len(), 4 + 256 + 4 + 1);
    assert_eq!(encoded[..4], 2_f32.to_le_bytes());
    // A tie, 1.5, is rounded to even.
    assert_eq!(encoded[4..9], [127, 129, 2, 253, 0]);
    assert_eq!(encoded[260..264], 1_f32.to_le_bytes());
    assert_eq!(encoded[264], 129);
    assert_eq!(values[..4], [0.0, 0.0, -1.0, -5.1 + 6.0]);
}

#[test]
fn packed_codes_match_the_specification() {
    // Two runs: the elements 0 to 2, and 3 and 4.
    let mut values = [14.0, -14.0, 3.0, -6.0, 2.0];
    let mut encoded = vec![0xa5; encoded_bytes::<Int4>(5)];
    encode::<Int4>(&mut values, &mut encoded, Draws::of(&UNUSED)).unwrap();
    assert_eq!(encoded[..4], 2_f32.to_le_bytes());
    // 7 and −3; −7 and 1; 2, a tie that is rounded to even.
    assert_eq!(encoded[4..], [0xd7, 0x19, 0x02]);
    assert_eq!(values, [0.0, 0.0, -1.0, 0.0, 0.0]);

    let mut values = [1.0, -4.0, 3.0, -2.0, 0.0, 2.0, 2.0, -0.0, 2.0, -2.0];
    let mut encoded = vec![0xa5; encoded_bytes::<OneBit>(10)];
    encode::<OneBit>(&mut values, &mut encoded, Draws::of(&UNUSED)).unwrap();
    // Even elements are in the first byte, odd ones in the second.
    assert_eq!(encoded[8..], [0, 0b11011]);
    assert_eq!(encoded[4..8], (-2_f32).to_le_bytes());
    assert_eq!(values[1], -2.0);
}

#[test]
fn every_magnitude_stays_finite() {
    every_magnitude::<Int8>(0.99);
    every_magnitude::<Int4>(0.99);
    // The decoded value is a mean.
    every_magnitude::<OneBit>(0.0);
}

/// Checks that the largest magnitude decodes to at least this fraction of it.
fn every_magnitude<C: Code>(least: f32) {
    for exponent in 0..=254_u32 {
        for fraction in [0, 1, 0x3f_ffff, 0x7f_fffe, 0x7f_ffff] {
            let largest = f32::from_bits(exponent << 23 | fraction);
            let mut values = gradients(300, exponent.into());
            values.iter_mut().for_each(|value| *value *= largest);
            (values[7], values[299]) = (largest, -largest);
            let decoded = decoded::<C>(&values);
            // Magnitudes this small have no scale.
            assert!(largest < 1e-35 || decoded[7] > least * largest, "{largest:e} became {:e}", decoded[7]);
        }
    }
}

#[test]
fn means_of_the_largest_values_are_finite() {
    for count in COUNTS {
        let decoded = decoded::<OneBit>(&vec![f32::MAX; count]);
        assert!(decoded.iter().all(|&value| value > 0.999 * f32::MAX), "{decoded:?}");
    }
}

#[test]
fn subnormal_values_stay_in_the_residual() {
    fn check<C: Code>() {
        let values = [f32::from_bits(1), -f32::from_bits(1), f32::MIN_POSITIVE / 2.0, -0.0, 1e-39];
        assert_eq!(bits(&decoded::<C>(&values)), [0; 5]);
    }
    check::<Int8>();
    check::<Int4>();
    check::<OneBit>();
    let with_larger = [f32::from_bits(1), -0.0, 1.0];
    assert_eq!(decoded::<Int8>(&with_larger)[..2], [0.0, 0.0]);
}

#[test]
fn zeros_decode_to_zeros() {
    let zeros = [0.0, -0.0].repeat(200);
    for decoded in [decoded::<Int8>(&zeros), decoded::<Int4>(&zeros), decoded::<OneBit>(&zeros)] {
        assert_eq!(bits(&decoded), [0; 400]);
    }
}

#[test]
fn first_non_finite_value_is_reported() {
    first_not_finite_is_reported::<Int8>();
    first_not_finite_is_reported::<Int4>();
    first_not_finite_is_reported::<OneBit>();
}

fn first_not_finite_is_reported<C: Code>() {
    for level in Level::available() {
        for count in COUNTS.into_iter().filter(|&count| count > 0) {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for index in [0, count / 2, count - 1] {
                    let mut values = gradients(count, 9);
                    (values[index], values[count - 1]) = (bad, bad);
                    let before = values.clone();
                    let mut encoded = vec![0xa5; encoded_bytes::<C>(count)];
                    let refused =
                        level.run(Encode::<C>(&mut values, &mut encoded, Draws::of(&UNUSED), PhantomData));
                    assert_eq!(refused, Err(index), "{count} {level:?}");
                    let block = index / BLOCK;
                    assert_eq!(bits(&values[block * BLOCK..]), bits(&before[block * BLOCK..]));
                    assert!(encoded[encoded_bytes::<C>(block * BLOCK)..].iter().all(|&byte| byte == 0xa5));
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "the encoded bytes of 3 values")]
fn wrong_encoded_length_panics() {
    decode::<Int8>(&mut [0.0; 3], &[0; 6]);
}

/// Checks that the mean of decoded values over many calls is within five standard deviations of each value.
fn check_mean<C: Code>(steps: f32) {
    const CALLS: u64 = 4000;
    // Ends in the middle of a block. The largest value is a multiple of a scale.
    let values: Vec<f32> = (0..300).map(|index| (index as f32 - 150.0) * 0.01).collect();
    let mut sums = vec![0.0_f64; values.len()];
    let mut last = Vec::new();
    for call in 0..CALLS {
        let mut results = Level::available().map(|level| {
            let (mut left, mut encoded) = (values.clone(), vec![0; encoded_bytes::<C>(values.len())]);
            let draws = Draws::of(&[3, call]);
            level.run(Encode::<C>(&mut left, &mut encoded, draws, PhantomData)).unwrap();
            let mut decoded = vec![f32::NAN; values.len()];
            level.run(Decode::<C, false>(&mut decoded, &encoded, PhantomData));
            for ((&value, &left), &decoded) in values.iter().zip(&left).zip(&decoded) {
                assert_eq!(left.to_bits(), (value - decoded).to_bits(), "the residual is the difference");
                // Below the larger of the two blocks' steps.
                assert!(left.abs() < 1.51 / steps, "{value} became {decoded}");
            }
            (encoded, decoded)
        });
        let (encoded, decoded) = results.next().unwrap();
        assert!(results.all(|(also, _)| also == encoded), "identical for every instruction set");
        assert_ne!(encoded, last, "different numbers in each call");
        last = encoded;
        sums.iter_mut().zip(decoded).for_each(|(sum, decoded)| *sum += f64::from(decoded));
    }
    // A value that is rounded up with probability p has a variance of p (1 − p) steps squared, which is at most a quarter.
    let bound = 5.0 * 0.5 * f64::from(1.5 / steps) / (CALLS as f64).sqrt();
    for (&value, sum) in values.iter().zip(sums) {
        let mean = sum / CALLS as f64;
        assert!((mean - f64::from(value)).abs() < bound, "{value}: {mean}, and {bound} is allowed");
    }
}

#[test]
fn stochastic_rounding_is_unbiased() {
    check_mean::<Int8Stochastic>(127.0);
    check_mean::<Int4Stochastic>(7.0);
}

#[test]
fn multiples_of_the_scale_are_exact() {
    for call in 0..2000 {
        let mut values: Vec<f32> = (-127_i8..=127).map(f32::from).collect();
        let mut encoded = vec![0; encoded_bytes::<Int8>(values.len())];
        encode::<Int8Stochastic>(&mut values, &mut encoded, Draws::of(&[call])).unwrap();
        assert!(values.iter().all(|&left| left == 0.0), "{values:?}");
    }
}

#[test]
fn non_finite_values_are_reported_by_stochastic_encoding() {
    let mut values = vec![1.0; 300];
    values[280] = f32::NAN;
    let mut encoded = vec![0; encoded_bytes::<Int4>(values.len())];
    assert_eq!(encode::<Int4Stochastic>(&mut values, &mut encoded, Draws::of(&[])), Err(280));
}
