//! Tests that answers keep every bit, and that invalid ones are refused.

use proptest::prelude::*;

use super::*;

fn shape(kind: &Kind) -> Shape {
    Shape::of(kind, &Schema::default())
}

const ROWS: Kind = Kind::Table { features: 1, classes: 1 };

/// Sends this many samples of one number. Returns their bits, and the size of the message.
fn sent(values: Values, samples: usize) -> (Vec<u32>, usize) {
    let bytes = BatchAnswer::new(values, &vec![0; samples]).encode_to_vec();
    let (values, _) = BatchAnswer::decode(bytes.as_slice()).unwrap().values(samples, shape(&ROWS)).unwrap();
    let bits = match values {
        Values::Levels(levels) => levels.into_iter().map(u32::from).collect(),
        Values::Numbers(values) => values.into_iter().map(f32::to_bits).collect(),
        Values::Tokens(tokens) => tokens,
    };
    (bits, bytes.len())
}

#[test]
fn levels_of_images_are_sent_as_bytes() {
    let levels: Vec<u8> = (0..=255).cycle().take(4096).collect();
    let (back, bytes) = sent(Values::Levels(levels.clone()), 4096);
    assert!(back.into_iter().eq(levels.into_iter().map(u32::from)));
    assert!(bytes < 4096 + 4 * 4096 + 64, "{bytes} bytes, of which four fifths are targets");
}

proptest! {
    #[test]
    fn every_bit_of_a_number_is_kept(values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..200)) {
        let (bits, samples) = (values.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), values.len());
        prop_assert_eq!(sent(Values::Numbers(values), samples).0, bits);
    }

    #[test]
    fn damaged_answers_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), samples in 0_usize..1 << 40) {
        if let Ok(answer) = BatchAnswer::decode(bytes.as_slice()) {
            for kind in [ROWS, Kind::Text { context: 3, vocabulary: vec!['a', 'b'] }] {
                if let Ok((_, targets)) = answer.values(samples, shape(&kind)) {
                    prop_assert_eq!(targets.len(), samples * shape(&kind).targets());
                }
            }
        }
    }
}

#[test]
fn answers_must_match_the_request() {
    let text = Kind::Text { context: 2, vocabulary: vec!['a', 'b'] };
    let answer = BatchAnswer::new(Values::Tokens(vec![0, 1]), &[1, 0]);
    assert_eq!(answer.values(1, shape(&text)).unwrap(), (Values::Tokens(vec![0, 1]), vec![1, 0]));
    for (samples, kind) in [(2, &text), (1, &ROWS), (usize::MAX, &ROWS)] {
        let refused = answer.values(samples, shape(kind)).unwrap_err();
        assert!(refused.starts_with("its answer has 2 inputs and 2 targets"), "{refused}");
    }
    let few = Kind::Text { context: 2, vocabulary: vec!['a'] };
    assert!(answer.values(1, shape(&few)).is_err(), "a token has no character");
    let empty = BatchAnswer { inputs: None, targets: Bytes::new() };
    assert_eq!(empty.values(0, shape(&ROWS)).unwrap_err(), "its answer has no inputs");
}

#[test]
fn the_first_difference_is_named() {
    let own = Description {
        version: "1".into(),
        source: "csv:a".into(),
        options: "none".into(),
        fingerprint: 7,
        kind: "k".into(),
        schema: "s".into(),
        train: 9,
        test: 1,
        threads: 2,
    };
    let elsewhere = Description { source: "csv:b".into(), threads: 3, ..own.clone() };
    assert_eq!((own.difference(&elsewhere), own.identity()), (None, elsewhere.identity()));
    for (other, what, its, others) in [
        (Description { version: "2".into(), ..own.clone() }, "version", "1", "2"),
        (Description { options: "some".into(), ..own.clone() }, "options", "none", "some"),
        (Description { train: 8, ..own.clone() }, "number of samples", "9 and 1", "8 and 1"),
        (
            Description { fingerprint: 8, ..own.clone() },
            "fingerprint",
            "0000000000000007",
            "0000000000000008",
        ),
    ] {
        assert_eq!(own.difference(&other), Some((what, its.to_owned(), others.to_owned())));
        assert_ne!(own.identity(), other.identity());
    }
}
