//! Answers keep every bit, and wrong ones are refused.

use proptest::prelude::*;

use super::*;

fn pixels(values: Vec<f32>) -> Batch {
    Batch { samples: values.len(), targets: vec![0; values.len()], inputs: Inputs::Pixels(values) }
}

fn bits(batch: &Batch) -> Vec<u32> {
    match &batch.inputs {
        Inputs::Pixels(values) => values.iter().map(|value| value.to_bits()).collect(),
        Inputs::Tokens(tokens) => tokens.clone(),
    }
}

const ROWS: Kind = Kind::Table { features: 1, classes: 1 };

/// The batch after it has been sent, and the bytes that this took.
fn sent(batch: &Batch) -> (Batch, usize) {
    let bytes = BatchAnswer::new(batch).encode_to_vec();
    let back = BatchAnswer::decode(bytes.as_slice()).unwrap().batch(batch.samples, &ROWS).unwrap();
    (back, bytes.len())
}

#[test]
fn levels_of_images_are_sent_as_bytes() {
    let batch = pixels((0..=255).cycle().take(4096).map(normalise).collect());
    let (back, bytes) = sent(&batch);
    assert_eq!(bits(&back), bits(&batch));
    assert!(bytes < 4096 + 4 * 4096 + 64, "{bytes} bytes, of which a quarter are targets' fifths");
}

proptest! {
    #[test]
    fn every_bit_of_a_number_is_kept(values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..200)) {
        let batch = pixels(values);
        prop_assert_eq!(bits(&sent(&batch).0), bits(&batch));
    }

    #[test]
    fn damaged_answers_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), samples in 0_usize..1 << 40) {
        if let Ok(answer) = BatchAnswer::decode(bytes.as_slice()) {
            for kind in [ROWS, Kind::Text { context: 3, vocabulary: vec!['a', 'b'] }] {
                if let Ok(batch) = answer.batch(samples, &kind) {
                    prop_assert_eq!(batch.samples, samples);
                }
            }
        }
    }
}

#[test]
fn answers_must_fit_the_question() {
    let text = Kind::Text { context: 2, vocabulary: vec!['a', 'b'] };
    let batch = Batch { inputs: Inputs::Tokens(vec![0, 1]), targets: vec![1, 0], samples: 1 };
    let answer = BatchAnswer::new(&batch);
    assert_eq!(answer.batch(1, &text).unwrap(), batch);
    for (samples, kind) in [(2, &text), (1, &ROWS), (usize::MAX, &ROWS)] {
        let refused = answer.batch(samples, kind).unwrap_err();
        assert!(refused.starts_with("its answer has 2 inputs and 2 targets"), "{refused}");
    }
    let few = Kind::Text { context: 2, vocabulary: vec!['a'] };
    assert!(answer.batch(1, &few).is_err(), "a token has no character");
    let empty = BatchAnswer { inputs: None, targets: Bytes::new() };
    assert_eq!(empty.batch(0, &ROWS).unwrap_err(), "its answer has no inputs");
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
