//! Tests of valid and invalid arrays.

use proptest::prelude::*;

use super::super::testing::{TestDirectory, normalise};
use super::*;
use crate::batch::{Inputs, Pass};
use crate::{Source, load, load_as};

/// Returns an array as NumPy writes it, version 1.
fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    array(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"), numbers)
}

fn array(header: &str, numbers: &[u8]) -> Vec<u8> {
    let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
    let header = format!("{header:width$}\n", width = length - 1);
    [b"\x93NUMPY\x01\x00", &(length as u16).to_le_bytes()[..], header.as_bytes(), numbers].concat()
}

fn floats(numbers: impl Iterator<Item = f32>) -> Vec<u8> {
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// Writes numbered images of 2x3 levels, and labels of this many bytes each.
fn images(directory: &TestDirectory, names: [&str; 2], count: u8, descr: &str, width: usize) {
    directory.file(names[0], npy("|u1", &format!("({count}, 2, 3)"), &(0..count * 6).collect::<Vec<_>>()));
    let label = |number: u8| (0..width).map(move |byte| if byte == 0 { number % 3 } else { 0 });
    directory
        .file(names[1], npy(descr, &format!("({count},)"), &(0..count).flat_map(label).collect::<Vec<_>>()));
}

#[test]
fn images_are_read_with_labels_of_any_width() {
    for (descr, width) in [("|u1", 1), ("|i1", 1), ("<u2", 2), ("<i4", 4), ("<i8", 8), ("<u8", 8)] {
        let directory = TestDirectory::new();
        images(&directory, ["x_train.npy", "y_train.npy"], 20, descr, width);
        images(&directory, ["x_test.npy", "y_test.npy"], 4, descr, width);
        let data = read(directory.path(), &Options::default(), None).unwrap();
        assert_eq!(data.kind, Kind::Images { height: 2, width: 3, channels: 1, classes: 3 });
        assert_eq!((data.train.len(), data.test.len()), (20, 4));
        let batch = data.train.batch(&[19, 1], Pass::Evaluation).unwrap();
        assert_eq!(batch.targets, [1, 1]);
        let expected = (114..120).chain(6..12).map(normalise).collect();
        assert_eq!(batch.inputs, Inputs::Pixels(expected));
    }
}

#[test]
fn colour_images_without_a_test_part_are_divided_and_augmented() {
    let directory = TestDirectory::new();
    directory.file("images.npy", npy("|u1", "(20, 4, 5, 3)", &[200; 20 * 60]));
    directory.file("labels.npy", npy("<u4", "(20, 1)", &[1, 0, 0, 0].repeat(20)));
    let options = Options { augmentation: "mirror,crop:2".parse().unwrap(), ..Options::default() };
    let data = read(directory.path(), &options, None).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 4, width: 5, channels: 3, classes: 2 });
    assert_eq!((data.train.len(), data.test.len()), (18, 2));
    let all: Vec<_> = (0..18).collect();
    let batch = |epoch| data.train.batch(&all, Pass::Training { seed: 1, epoch }).unwrap();
    assert_ne!(batch(1), batch(2));
    assert_eq!(batch(1), batch(1));
    assert_ne!(batch(1), data.train.batch(&all, Pass::Evaluation).unwrap());
}

#[test]
fn rows_are_standardised_like_rows_of_a_table() {
    let table: Vec<f32> = (0..40).map(|number| (number * number) as f32 / 7.0).collect();
    let labels: Vec<u8> = (0..20).map(|row| row % 2).collect();
    let text: String =
        table.chunks(2).zip(&labels).map(|(row, label)| format!("{},{},{label}\n", row[0], row[1])).collect();
    let wide = table.iter().flat_map(|&number| f64::from(number).to_le_bytes()).collect();
    for (descr, numbers) in [("<f4", floats(table.iter().copied())), ("<f8", wide)] {
        let directory = TestDirectory::new();
        let source = Source::Npy(directory.path().into());
        directory.file("x_train.npy", npy(descr, "(20, 2)", &numbers));
        directory.file("y_train.npy", npy("|u1", "(20,)", &labels));
        let data = load(&source, &Options::default()).unwrap();
        let csv = Source::Csv(directory.file("table.csv", format!("0,1,label\n{text}")));
        let csv = load(&csv, &Options::default()).unwrap();
        assert_eq!((&data.kind, &data.schema.columns), (&csv.kind, &csv.schema.columns));
        let all: Vec<_> = (0..18).collect();
        let batch = |data: &Dataset| data.train.batch(&all, Pass::Evaluation).unwrap();
        assert_eq!(batch(&data), batch(&csv));
        for options in [
            Options { augmentation: "mirror".parse().unwrap(), ..Options::default() },
            Options { normalize: Some(Normalize::Measured), ..Options::default() },
        ] {
            let message = load(&source, &options).unwrap_err().to_string();
            assert!(message.contains("x_train.npy`: has rows, which are neither normalised"), "{message}");
        }
        // For a model, rows are standardised by its statistics instead of their own.
        let mut schema = data.schema.clone();
        let again = load_as(&source, &Options::default(), &data.kind, &schema).unwrap();
        assert_eq!(batch(&again), batch(&data));
        schema.columns[0].mean += 1.0;
        let other = load_as(&source, &Options::default(), &data.kind, &schema).unwrap();
        assert_ne!(batch(&other), batch(&data));
        schema.columns.pop();
        let message = load_as(&source, &Options::default(), &data.kind, &schema).unwrap_err().to_string();
        assert!(message.contains("x_train.npy`: has 2 columns: expected 1, as in training"), "{message}");
        let one = Kind::Table { features: 2, classes: 1 };
        let message = load_as(&source, &Options::default(), &one, &data.schema).unwrap_err().to_string();
        assert!(
            message.contains("y_train.npy`, record 1: is the label 1: expected one from 0 to 0"),
            "{message}"
        );
    }
}

#[test]
fn arrays_that_do_not_match_are_reported() {
    let right = npy("|u1", "(20, 2, 3)", &[0; 120]);
    let labels = npy("|u1", "(20,)", &[0; 20]);
    let fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (20, 2), }";
    let record = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (20,), }";
    let nan = floats((0..40).map(|number| if number == 7 { f32::NAN } else { 1.0 }));
    let cases: [(Vec<u8>, Vec<u8>, &str); 16] = [
        (
            npy(">f4", "(20, 2)", &[0; 160]),
            labels.clone(),
            "x_train.npy`: is big-endian (`>f4`): save it with",
        ),
        (array(fortran, &[0; 160]), labels.clone(), "is in Fortran's order: save it with"),
        (array(record, &[0; 80]), labels.clone(), "x_train.npy`: is a structured array: expected numbers"),
        (
            npy("<i4", "(20, 2)", &[0; 160]),
            labels.clone(),
            "is an array of `i4` with the shape [20, 2]: expected `u1` images",
        ),
        (npy("|u1", "(20, 2, 3, 2)", &[0; 240]), labels.clone(), "with the shape [20, 2, 3, 2]: expected"),
        (npy("|u1", "()", &[0]), labels.clone(), "with the shape []: expected at least one dimension"),
        (npy("|u1", "(20, 0, 3)", &[]), labels.clone(), "expected sizes above 0"),
        (
            npy("|u1", "(4294967296, 4294967296, 3)", &[]),
            labels.clone(),
            "expected sizes above 0 that fit in a file",
        ),
        (right[..200].to_vec(), labels.clone(), "has 200 bytes: expected 248, as its header says"),
        ([&right[..], &[0]].concat(), labels.clone(), "has 249 bytes: expected 248"),
        (right[..9].to_vec(), labels.clone(), "has no header of version 1 to 3"),
        (right[..60].to_vec(), labels.clone(), "has a header of 118 bytes"),
        (
            right.clone(),
            npy("<f4", "(20,)", &[0; 80]),
            "y_train.npy`: is an array of `f4` with the shape [20]: expected labels",
        ),
        (right.clone(), npy("|u1", "(19,)", &[0; 19]), "y_train.npy`: has 19 labels for the 20 images of `"),
        (right.clone(), npy("|i1", "(20,)", &[255; 20]), "y_train.npy`, record 0: is no class"),
        (
            npy("<f4", "(20, 2)", &nan),
            labels.clone(),
            "x_train.npy`, record 3: has NaN in column 1: expected a finite",
        ),
    ];
    for (samples, labels, expected) in cases {
        let directory = TestDirectory::new();
        directory.file("x_train.npy", samples);
        directory.file("y_train.npy", labels);
        let message = read(directory.path(), &Options::default(), None).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}, not {expected}");
    }
    let directory = TestDirectory::new();
    let refusal = || read(directory.path(), &Options::default(), None).unwrap_err().to_string();
    assert!(
        refusal()
            .contains("contains no `x_train.npy`: expected `x_train.npy` with `y_train.npy` or `images.npy`")
    );
    images(&directory, ["images.npy", "labels.npy"], 9, "|u1", 1);
    assert!(refusal().contains("too short: 9 samples, expected at least 10"));
    images(&directory, ["x_test.npy", "y_test.npy"], 4, "|u1", 1);
    directory.file("x_test.npy", npy("|u1", "(4, 3, 2)", &[0; 24]));
    assert!(
        refusal().contains(
            "x_test.npy`: has images of the shape [3, 2, 1]: expected images of the shape [2, 3, 1]"
        )
    );
}

#[test]
fn texts_and_objects_are_refused_by_their_type() {
    let cases = [
        (
            "y_train.npy",
            npy("<U3", "(20,)", &[0; 240]),
            "`U3` with the shape [20]: expected labels, whole numbers",
        ),
        (
            "y_train.npy",
            npy("|O", "(20,)", &[0; 99]),
            "`O` with the shape [20]: expected labels, whole numbers",
        ),
        (
            "x_train.npy",
            npy("|S5", "(20, 2)", &[0; 200]),
            "`S5` with the shape [20, 2]: expected `u1` images",
        ),
    ];
    for (name, array, expected) in cases {
        let directory = TestDirectory::new();
        images(&directory, ["x_train.npy", "y_train.npy"], 20, "|u1", 1);
        directory.file(name, array);
        let message = read(directory.path(), &Options::default(), None).unwrap_err().to_string();
        assert!(message.contains(&format!("{name}`: is an array of {expected}")), "{message}");
    }
}

proptest! {
    #[test]
    fn damaged_arrays_never_panic(
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        is_labels: bool,
        is_long: bool,
    ) {
        let directory = TestDirectory::new();
        images(&directory, ["x_train.npy", "y_train.npy"], 20, "<i8", 8);
        let path = directory.path().join(if is_labels { "y_train.npy" } else { "x_train.npy" });
        let mut bytes = std::fs::read(&path).unwrap();
        // Mostly in the header.
        let length = if is_long { bytes.len() } else { 128 };
        damages.iter().for_each(|(at, byte)| bytes[at.index(length)] = *byte);
        std::fs::write(path, bytes).unwrap();
        if let Ok(data) = read(directory.path(), &Options::default(), None) {
            let all: Vec<_> = (0..data.train.len()).collect();
            data.train.batch(&all, Pass::Evaluation).unwrap();
        }
    }
}
