//! What is decoded and what is left make the value, at every level with the same bits.

use super::*;

const COUNTS: [usize; 9] = [0, 1, 15, 255, 256, 257, 511, 512, 1000];

/// Values like gradients: of many magnitudes, some of them zero.
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

/// Encodes and decodes at every level, and compares with the definition: the values decoded.
fn decoded(values: &[f32]) -> Vec<f32> {
    let mut results = Level::available().map(|level| {
        let mut left = values.to_vec();
        let mut encoded = vec![0xa5; encoded_bytes(values.len())];
        encode_at(level, &mut left, &mut encoded).unwrap();
        let mut decoded = vec![f32::NAN; values.len()];
        decode_at(level, &mut decoded, &encoded);
        let mut sums = values.to_vec();
        decode_add_at(level, &mut sums, &encoded);
        for (index, &value) in values.iter().enumerate() {
            let (decoded, left, sum) = (decoded[index], left[index], sums[index]);
            let case = format!("{value:e} at {index} of {} at {level:?}", values.len());
            assert!(decoded.is_finite() && left.is_finite(), "{case}: {decoded:e} {left:e}");
            assert_eq!(left.to_bits(), (value - decoded).to_bits(), "{case}: the difference is left");
            assert!(
                (decoded + left - value).abs() <= value.abs() * f32::EPSILON,
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

#[test]
fn what_is_decoded_and_what_is_left_make_the_value() {
    for count in COUNTS {
        for seed in 0..20 {
            let values = gradients(count, seed);
            let decoded = decoded(&values);
            for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
                let largest = values.iter().fold(0_f32, |largest, value| largest.max(value.abs()));
                // Half a step, and the roundings on the way there.
                let most = largest / 127.0 * 0.500_05;
                for (value, decoded) in values.iter().zip(decoded) {
                    assert!((value - decoded).abs() <= most, "{value:e} became {decoded:e}, of {largest:e}");
                }
            }
        }
    }
}

#[test]
fn the_bytes_are_as_specified() {
    let mut values = vec![0.0; 257];
    (values[0], values[1], values[2], values[3], values[256]) = (254.0, -254.0, 3.0, -5.1, -127.0);
    let mut encoded = vec![0; encoded_bytes(257)];
    encode(&mut values, &mut encoded).unwrap();
    assert_eq!(encoded.len(), 4 + 256 + 4 + 1);
    assert_eq!(encoded[..4], 2_f32.to_le_bytes());
    // A tie, 1.5, is rounded to even.
    assert_eq!(encoded[4..9], [127, 129, 2, 253, 0]);
    assert_eq!(encoded[260..264], 1_f32.to_le_bytes());
    assert_eq!(encoded[264], 129);
    assert_eq!(values[..4], [0.0, 0.0, -1.0, -5.1 + 6.0]);
}

#[test]
fn every_magnitude_stays_finite() {
    for exponent in 0..=254_u32 {
        for fraction in [0, 1, 0x3f_ffff, 0x7f_fffe, 0x7f_ffff] {
            let largest = f32::from_bits(exponent << 23 | fraction);
            let mut values = gradients(300, exponent.into());
            values.iter_mut().for_each(|value| *value *= largest);
            (values[7], values[299]) = (largest, -largest);
            let decoded = decoded(&values);
            // So little is not worth a scale.
            assert!(largest < 1e-35 || decoded[7] > 0.99 * largest, "{largest:e} became {:e}", decoded[7]);
        }
    }
}

#[test]
fn subnormal_values_are_left() {
    let values = [f32::from_bits(1), -f32::from_bits(1), f32::MIN_POSITIVE, -0.0, 1e-36];
    assert_eq!(bits(&decoded(&values)), [0; 5]);
    let with_larger = [f32::from_bits(1), -0.0, 1.0];
    assert_eq!(decoded(&with_larger)[..2], [0.0, 0.0]);
}

#[test]
fn zeros_are_zeros() {
    let decoded = decoded(&[0.0, -0.0].repeat(200));
    assert_eq!(bits(&decoded), [0; 400]);
}

#[test]
fn the_first_value_that_is_not_finite_is_reported() {
    for level in Level::available() {
        for count in COUNTS.into_iter().filter(|&count| count > 0) {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for index in [0, count / 2, count - 1] {
                    let mut values = gradients(count, 9);
                    (values[index], values[count - 1]) = (bad, bad);
                    let before = values.clone();
                    let mut encoded = vec![0xa5; encoded_bytes(count)];
                    assert_eq!(encode_at(level, &mut values, &mut encoded), Err(index), "{count} {level:?}");
                    let block = index / BLOCK;
                    assert_eq!(bits(&values[block * BLOCK..]), bits(&before[block * BLOCK..]));
                    assert!(encoded[block * BLOCK_BYTES..].iter().all(|&byte| byte == 0xa5));
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "the bytes of 3 values, encoded")]
fn bytes_of_another_number_of_values_are_refused() {
    decode(&mut [0.0; 3], &[0; 6]);
}
