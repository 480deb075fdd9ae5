//! Tests of equal bits at every level, and of the special values.

use bytemuck::{cast_slice, cast_slice_mut};

use half::{bf16, f16};

use super::number::Number;
use super::*;

/// Returns `count` random elements of a type, a third of them special values.
fn elements(dtype: DType, count: usize, seed: u64) -> Vec<u8> {
    let special: &[u64] = match dtype {
        DType::F32 => {
            &[0, 1 << 31, 1, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xffa0_0000, 0x3f80_0000, 0x7f_ffff]
        }
        DType::F64 => {
            &[0, 1 << 63, 1, 0x7ff << 52, 0xfff << 52, (0x7ff << 52) | 9, (0xfff << 52) | 3, 0x3ff << 52]
        }
        DType::F16 => &[0, 1 << 15, 1, 0x7c00, 0xfc00, 0x7e01, 0xfd00, 0x3c00, 0x03ff, 0x7bff],
        DType::BF16 => &[0, 1 << 15, 1, 0x7f80, 0xff80, 0x7fc1, 0xffa0, 0x3f80, 0x007f, 0x7f7f],
        _ => &[0, 1, u64::MAX, 1 << 31, 1 << 63],
    };
    let mut state = seed;
    let mut random = move || {
        // A linear congruential generator, whose upper bits suffice here.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) ^ (state << 31)
    };
    let mut bytes = Vec::new();
    for _ in 0..count {
        let draw = random();
        let bits = if draw % 3 == 0 { special[(draw >> 8) as usize % special.len()] } else { random() };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size_bytes()]);
    }
    bytes
}

/// A copy of some bytes at a chosen offset, which varies the alignment for vectors.
struct Placed {
    words: Vec<u64>,
    range: std::ops::Range<usize>,
}

impl Placed {
    fn new(bytes: &[u8], offset_bytes: usize) -> Self {
        let mut words = vec![0; (offset_bytes + bytes.len()).div_ceil(8)];
        let range = offset_bytes..offset_bytes + bytes.len();
        cast_slice_mut::<u64, u8>(&mut words)[range.clone()].copy_from_slice(bytes);
        Self { words, range }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words)[self.range.clone()]
    }
}

/// Returns the bits of elements, with one pattern for all NaNs. The processor and the compiler determine the payload of a NaN that results
/// from two.
fn without_payloads(dtype: DType, bytes: &[u8]) -> Vec<u64> {
    fn one<T: bytemuck::Pod>(bytes: &[u8], bits: impl Fn(T) -> Option<u64>) -> Vec<u64> {
        let read = |element: &[u8]| bits(bytemuck::pod_read_unaligned(element)).unwrap_or(u64::MAX);
        bytes.chunks(size_of::<T>()).map(read).collect()
    }
    match dtype {
        DType::F32 => one(bytes, |x: f32| (!x.is_nan()).then_some(x.to_bits().into())),
        DType::F64 => one(bytes, |x: f64| (!x.is_nan()).then_some(x.to_bits())),
        DType::F16 => one(bytes, |x: f16| (!x.is_nan()).then_some(x.to_bits().into())),
        DType::BF16 => one(bytes, |x: bf16| (!x.is_nan()).then_some(x.to_bits().into())),
        _ => bytes.iter().copied().map(u64::from).collect(),
    }
}

const COUNTS: [usize; 9] = [0, 1, 7, 15, 16, 17, 63, 257, 1009];

fn for_every_case(mut case: impl FnMut(DType, usize, usize)) {
    for dtype in DType::ALL {
        for count in COUNTS {
            for offset in [0, 1, 5] {
                case(dtype, count, offset * dtype.size_bytes());
            }
        }
    }
}

/// Computes a reduction one element at a time.
fn elementwise(dtype: DType, op: ReduceOp, held: &[u8], arrived: &[u8]) -> Vec<u8> {
    fn one<T: Number>(op: ReduceOp, held: &[u8], arrived: &[u8]) -> Vec<u8> {
        let read = |element: &[u8]| bytemuck::pod_read_unaligned::<T>(element);
        let pairs = held.chunks(size_of::<T>()).zip(arrived.chunks(size_of::<T>()));
        let results = pairs.map(|(held, arrived)| {
            let (held, arrived) = (read(held), read(arrived));
            match op {
                ReduceOp::Sum | ReduceOp::Mean => held.sum(arrived),
                ReduceOp::Product => held.product(arrived),
                ReduceOp::Min => held.smaller(arrived),
                ReduceOp::Max => held.larger(arrived),
                _ => unreachable!("{op} is for bits"),
            }
        });
        results.flat_map(|result| bytemuck::bytes_of(&result).to_vec()).collect()
    }
    fn of_bits(op: ReduceOp, held: &[u8], arrived: &[u8]) -> Vec<u8> {
        let read = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
        let (held, arrived) = (read(held), read(arrived));
        let result = match op {
            ReduceOp::BitAnd => held & arrived,
            ReduceOp::BitOr => held | arrived,
            ReduceOp::BitXor => held ^ arrived,
            ReduceOp::LogicalAnd => u64::from(held != 0 && arrived != 0),
            ReduceOp::LogicalOr => u64::from(held != 0 || arrived != 0),
            _ => u64::from((held != 0) != (arrived != 0)),
        };
        result.to_le_bytes().to_vec()
    }
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product | ReduceOp::Min | ReduceOp::Max) {
        return with_type!(dtype, T => one::<T>(op, held, arrived));
    }
    let size_bytes = dtype.size_bytes();
    let pairs = held.chunks(size_bytes).zip(arrived.chunks(size_bytes));
    pairs.flat_map(|(held, arrived)| of_bits(op, held, arrived).into_iter().take(size_bytes)).collect()
}

#[test]
fn kernels_give_the_same_bits_at_every_level() {
    for_every_case(|dtype, count, offset_bytes| {
        let (held, arrived) = (elements(dtype, count, 1), elements(dtype, count, 2));
        for op in ReduceOp::ALL.into_iter().filter(|op| op.is_defined_for(dtype)) {
            let plain = elementwise(dtype, op, &held, &arrived);
            let rounds = matches!(op, ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product);
            for level in Level::available() {
                let case = format!("{op} of {count} {dtype} at {level:?}");
                let mut one = Placed::new(&held, offset_bytes);
                let kernel: Kernel = with_type!(dtype, T => compiled!(level, op, Reading, T));
                kernel(one.bytes(), Placed::new(&arrived, 0).bytes());
                let bits = |bytes: &[u8]| without_payloads(dtype, bytes);
                assert_eq!(bits(one.bytes()), bits(&plain), "{case}");
                assert!(rounds || one.bytes() == plain, "{case}: NaNs too");

                let (mut one, mut other) = (Placed::new(&held, offset_bytes), Placed::new(&arrived, 0));
                let joint: Joint = with_type!(dtype, T => compiled!(level, op, Writing, T));
                joint(one.bytes(), other.bytes());
                assert_eq!(bits(one.bytes()), bits(&plain), "joint {case}");
                assert_eq!(one.bytes(), other.bytes(), "joint {case}");
            }
        }
    });
}

#[test]
fn means_are_quotients_at_every_level() {
    fn quotients(dtype: DType, bytes: &[u8], ranks: usize) -> Option<Vec<u8>> {
        fn all<T: bytemuck::Pod>(bytes: &[u8], quotient: impl Fn(T) -> T) -> Option<Vec<u8>> {
            let read = |element: &[u8]| quotient(bytemuck::pod_read_unaligned(element));
            Some(
                bytes
                    .chunks(size_of::<T>())
                    .map(read)
                    .flat_map(|q| bytemuck::bytes_of(&q).to_vec())
                    .collect(),
            )
        }
        match dtype {
            DType::F32 => all(bytes, |x: f32| x / ranks as f32),
            DType::F64 => all(bytes, |x: f64| x / ranks as f64),
            DType::F16 => all(bytes, |x: f16| f16::from_f32(x.to_f32() / ranks as f32)),
            DType::BF16 => all(bytes, |x: bf16| bf16::from_f32(x.to_f32() / ranks as f32)),
            _ => None,
        }
    }
    for_every_case(|dtype, count, offset_bytes| {
        for ranks in [1, 2, 3, 7, 64, 300] {
            let bytes = elements(dtype, count, 3);
            let mut expected = quotients(dtype, &bytes, ranks);
            for level in Level::available() {
                let mut sums = Placed::new(&bytes, offset_bytes);
                with_type!(dtype, T => level.compiled::<Divide<T>>())(sums.bytes(), ranks);
                let expected = expected.get_or_insert_with(|| sums.bytes().to_vec());
                assert_eq!(sums.bytes(), expected, "{count} {dtype} by {ranks} at {level:?}");
            }
        }
    });
}

#[test]
fn widened_halves_are_the_same_at_every_level() {
    for_every_case(|dtype, count, offset_bytes| {
        for op in [ReduceOp::Sum, ReduceOp::Product] {
            let wide = elements(DType::F32, count, 4);
            let arrived = elements(dtype, count, 5);
            let results: Vec<_> = Level::available()
                .filter_map(|level| {
                    let accumulator = Accumulator::at_level(level, dtype, op)?;
                    let mut held = Placed::new(&wide, 4);
                    let mut halves = Placed::new(&arrived, offset_bytes);
                    (accumulator.reduce)(held.bytes(), halves.bytes());
                    let reduced = without_payloads(DType::F32, held.bytes());
                    (accumulator.codec.decode)(held.bytes(), halves.bytes());
                    let decoded = held.bytes().to_vec();
                    let mut held = Placed::new(&wide, 4);
                    (accumulator.codec.encode)(halves.bytes(), held.bytes());
                    let encoded = halves.bytes().to_vec();
                    (accumulator.round)(held.bytes(), halves.bytes());
                    assert_eq!(halves.bytes(), encoded, "{op} of {count} {dtype} at {level:?}");
                    Some((reduced, decoded, encoded, held.bytes().to_vec()))
                })
                .collect();
            assert!(results.iter().all(|result| *result == results[0]), "{op} of {count} {dtype}");
        }
    });
}

/// Compares all pairs of some numbers with the definition of the minimum.
#[test]
fn minimum_and_maximum_of_floats_match_the_definition() {
    fn smaller(one: f64, other: f64) -> f64 {
        if one.is_nan() || other.is_nan() {
            f64::NAN
        } else if one < other || (one == other && one.is_sign_negative()) {
            one
        } else {
            other
        }
    }
    let numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0_f64.powi(-24),
        -2.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
    ];
    for (one, other) in numbers.iter().flat_map(|&one| numbers.map(|other| (one, other))) {
        let (min, max) = (smaller(one, other), -smaller(-one, -other));
        let agree = |result: f64, expected: f64| {
            assert!(
                result.to_bits() == expected.to_bits() || (result.is_nan() && expected.is_nan()),
                "{one} {other}"
            );
        };
        agree(one.smaller(other), min);
        agree(one.larger(other), max);
        let [one, other] = [one as f32, other as f32];
        agree(one.smaller(other).into(), min);
        agree(one.larger(other).into(), max);
        let halves = [one, other].map(f16::from_f32);
        agree(halves[0].smaller(halves[1]).into(), min);
        agree(halves[0].larger(halves[1]).into(), max);
        let halves = [one, other].map(bf16::from_f32);
        agree(halves[0].smaller(halves[1]).into(), min);
        agree(halves[0].larger(halves[1]).into(), max);
    }
}

fn reduced<T: crate::Element>(op: ReduceOp, held: &[T], arrived: &[T]) -> Vec<T> {
    let mut held = held.to_vec();
    kernel(T::DTYPE, op)(cast_slice_mut(&mut held), cast_slice(arrived));
    held
}

#[test]
fn arithmetic_reductions_of_a_few_numbers() {
    assert_eq!(reduced(ReduceOp::Sum, &[1.5_f32, -2.0], &[2.0, 0.25]), [3.5, -1.75]);
    assert_eq!(reduced(ReduceOp::Product, &[3_i64, -2], &[5, 7]), [15, -14]);
    assert_eq!(reduced(ReduceOp::Min, &[3_u8, 9], &[5, 7]), [3, 7]);
    assert_eq!(reduced(ReduceOp::Max, &[bf16::ONE], &[bf16::from_f32(-4.0)]), [bf16::ONE]);
    assert_eq!(reduced(ReduceOp::Sum, &[250_u8], &[10]), [4], "integers wrap around");
}

#[test]
fn bitwise_and_logical_reductions_of_integers() {
    assert_eq!(reduced(ReduceOp::BitAnd, &[0b1100_u8, 255], &[0b1010, 17]), [0b1000, 17]);
    assert_eq!(reduced(ReduceOp::BitOr, &[0b1100_i32, i32::MIN], &[0b1010, 1]), [0b1110, i32::MIN + 1]);
    assert_eq!(reduced(ReduceOp::BitXor, &[0b1100_u64, u64::MAX], &[0b1010, 1]), [0b0110, u64::MAX - 1]);
    let (held, arrived) = ([0, 0, -3, 256_i64], [0, 7, 0, 1 << 40]);
    assert_eq!(reduced(ReduceOp::LogicalAnd, &held, &arrived), [0, 0, 0, 1]);
    assert_eq!(reduced(ReduceOp::LogicalOr, &held, &arrived), [0, 1, 1, 1]);
    assert_eq!(reduced(ReduceOp::LogicalXor, &held, &arrived), [0, 1, 1, 0]);
}

#[test]
fn zeros_and_nans_commute() {
    for (one, other) in [(0.0_f64, -0.0_f64), (-0.0, 0.0)] {
        assert!(reduced(ReduceOp::Min, &[one], &[other])[0].is_sign_negative());
        assert!(reduced(ReduceOp::Max, &[one], &[other])[0].is_sign_positive());
    }
    for (one, other) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
        assert!(reduced(ReduceOp::Min, &[one], &[other])[0].is_nan());
        assert!(reduced(ReduceOp::Max, &[one], &[other])[0].is_nan());
    }
}

#[test]
fn an_integer_mean_is_rounded_towards_zero() {
    let mut elements = [7_i32, -7, 9];
    divide(DType::I32, cast_slice_mut(&mut elements), 3);
    assert_eq!(elements, [2, -2, 3]);
    let mut bytes = [255_u8];
    divide(DType::U8, &mut bytes, 300);
    assert_eq!(bytes, [0]);
}

#[test]
fn widened_halves_are_rounded_once() {
    let accumulator = Accumulator::of(DType::BF16, ReduceOp::Sum).unwrap();
    let tiny = [bf16::from_f32(1.0 / 512.0)];
    let mut held = [1.0_f32];
    for _ in 0..4 {
        (accumulator.reduce)(cast_slice_mut(&mut held), cast_slice(&tiny));
    }
    // If each sum were rounded, all would be lost: 1 + 1/512 rounds to 1.
    let mut rounded = [bf16::ZERO];
    (accumulator.round)(cast_slice_mut(&mut held), cast_slice_mut(&mut rounded));
    assert_eq!(rounded[0].to_f32(), 1.0 + 1.0 / 128.0);
    assert_eq!(held[0], rounded[0].to_f32());
}

#[test]
fn copies_match_the_simple_copy_at_every_level_length_and_offset() {
    const MOST: usize = 9000;
    let mut random = fastrand::Rng::with_seed(7);
    let given: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(2 * MOST).collect();
    let levels: Vec<_> = Level::available().map(copy::Copies::at_level).collect();
    let all_short = (0..=600).map(|size| (size, size % 67, size % 71));
    let longer: Vec<_> =
        std::iter::repeat_with(|| (random.usize(..MOST), random.usize(..MOST), random.usize(..MOST)))
            .take(if cfg!(miri) { 10 } else { 2000 })
            .collect();
    for (size_bytes, to, from) in all_short.chain(longer) {
        for copy::Copies { cached, streamed, .. } in &levels {
            for copy in [*cached, *streamed] {
                let mut place = vec![7; 2 * MOST];
                copy(&mut place[to..to + size_bytes], &given[from..from + size_bytes]);
                let case = format!("{size_bytes} bytes from {from} to {to}");
                assert!(place[to..to + size_bytes] == given[from..from + size_bytes], "{case}");
                let mut around = place[..to].iter().chain(&place[to + size_bytes..]);
                assert!(around.all(|&byte| byte == 7), "{case}: nothing else is written");
            }
        }
    }
}

#[test]
#[should_panic(expected = "source and destination must have the same size")]
fn copies_of_different_sizes_are_refused() {
    copy(&mut [0; 300], &[0; 299]);
}
