//! Tests of valid and invalid IDX data sets.

use super::super::testing::{TestDirectory, gzip};
use super::*;
use crate::batch::{Pass, Values};
use crate::split::Split;

fn read(directory: &Path) -> Result<Dataset, DataError> {
    super::read(directory, &Options::default())
}

fn file(magic: u32, shape: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = [&[magic], shape].concat();
    let header = header.into_iter().flat_map(u32::to_be_bytes);
    header.chain(bytes.iter().copied()).collect()
}

/// Returns a file of images of 2x3 for these labels, and a file of the labels.
fn pair(labels: &[u8]) -> [Vec<u8>; 2] {
    let count = labels.len() as u32;
    let pixels: Vec<u8> = (0..count as u8 * 6).collect();
    [file(0x803, &[count, 2, 3], &pixels), file(0x801, &[count], labels)]
}

/// Returns the error of reading a single pair of these files.
fn refusal(images: &[u8], labels: &[u8]) -> String {
    let directory = TestDirectory::new();
    directory.file("t10k-images-idx3-ubyte", images);
    directory.file("t10k-labels-idx1-ubyte", labels);
    let message = read(directory.path()).unwrap_err().to_string();
    // Images that stay in their file are refused for the same reason.
    let on_disk = Options { in_memory_bytes: 0, ..Options::default() };
    let other = super::read(directory.path(), &on_disk).unwrap_err().to_string();
    match message.starts_with("cannot read") {
        true => assert!(other.contains("cannot be unpacked"), "{other}"),
        false => assert_eq!(message, other),
    }
    message
}

#[test]
fn two_pairs_are_train_and_test() {
    let directory = TestDirectory::new();
    let [images, labels] = pair(&[1, 2, 3]);
    directory.file("train-images-idx3-ubyte", images);
    directory.file("train-labels-idx1-ubyte.gz", gzip(&labels));
    let [images, labels] = pair(&[9, 0]);
    // Gzipped, without `.gz` in its name.
    directory.file("t10k-images-idx3-ubyte", gzip(&images));
    directory.file("t10k-labels-idx1-ubyte", labels);

    let data = read(directory.path()).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 2, width: 3, channels: 1, classes: 10 });
    let all = |split: &Arc<dyn Split>| split.gather(&[0, 1, 2][..split.len()], Pass::Evaluation).unwrap();
    assert_eq!(all(&data.train), (Values::Levels((0..18).collect()), vec![1, 2, 3]));
    assert_eq!(all(&data.test), (Values::Levels((0..12).collect()), vec![9, 0]));
}

#[test]
fn a_single_pair_is_split_nine_to_one() {
    let directory = TestDirectory::new();
    let labels: Vec<u8> = (0..20).map(|i| i % 10).collect();
    let [images, label_file] = pair(&labels);
    directory.file("train-images-idx3-ubyte.gz", gzip(&images));
    directory.file("train-labels-idx1-ubyte", label_file);
    let data = read(directory.path()).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (18, 2));
    let levels = Values::Levels((18 * 6..20 * 6).collect());
    assert_eq!(data.test.gather(&[0, 1], Pass::Evaluation).unwrap(), (levels, vec![8, 9]));
}

#[test]
fn missing_files_are_named() {
    let directory = TestDirectory::new();
    let absent = read(&directory.path().join("absent")).unwrap_err().to_string();
    assert!(absent.contains("absent`: is no directory"), "{absent}");
    let empty = read(directory.path()).unwrap_err().to_string();
    assert!(empty.contains("train-images-idx3-ubyte") && empty.contains("t10k"), "{empty}");
    directory.file("train-images-idx3-ubyte", pair(&[1, 2])[0].as_slice());
    let half = read(directory.path()).unwrap_err().to_string();
    assert!(half.contains("contains no train-labels-idx1-ubyte: "), "{half}");
}

#[test]
fn malformed_files_are_refused() {
    let [images, labels] = &pair(&[1, 2]);
    let other = &pair(&[0; 9])[1];
    let longer = |file: &[u8]| [file, &[0]].concat();
    let shorter = |file: &[u8]| file[..file.len() - 1].to_vec();
    let cases = [
        (other.clone(), labels.clone(), "magic number is 0x00000801, expected 0x00000803"),
        (images.clone(), images.clone(), "magic number is 0x00000803, expected 0x00000801"),
        (vec![], labels.clone(), "truncated: 0 bytes, expected 16"),
        (shorter(images), labels.clone(), "truncated: 27 bytes, expected 28"),
        (images.clone(), shorter(labels), "truncated: 9 bytes, expected 10"),
        (longer(images), labels.clone(), "trailing bytes: expected it to end after 28"),
        (gzip(&longer(images)), labels.clone(), "trailing bytes"),
        (shorter(&gzip(images)), labels.clone(), "cannot be unpacked"),
        (images.clone(), pair(&[1, 2, 3])[1].clone(), "has 3 labels for the 2 images"),
        (images.clone(), pair(&[1, 10])[1].clone(), "labels sample 1 as 10: expected 0 to 9"),
        (pair(&[])[0].clone(), pair(&[])[1].clone(), "the shape [0, 2, 3]"),
        (file(0x803, &[2, 0, 3], &[]), labels.clone(), "the shape [2, 0, 3]"),
        (pair(&[1])[0].clone(), pair(&[1])[1].clone(), "too short: 1 images, expected"),
    ];
    for (images, labels, expected) in cases {
        let message = refusal(&images, &labels);
        assert!(message.contains(expected), "{message}, not {expected}");
    }
}

#[test]
fn a_header_with_huge_sizes_allocates_nothing() {
    let [_, labels] = pair(&[1, 2]);
    let vast = refusal(&file(0x803, &[u32::MAX; 3], &[]), &labels);
    assert!(vast.contains("fit in memory"), "{vast}");
    let large = refusal(&file(0x803, &[u32::MAX, 28, 28], &[0]), &labels);
    assert!(large.contains("truncated: 17 bytes"), "{large}");
}

#[test]
fn images_of_two_sizes_are_refused() {
    let directory = TestDirectory::new();
    let [images, labels] = pair(&[1, 2]);
    directory.file("train-images-idx3-ubyte", images);
    directory.file("train-labels-idx1-ubyte", &labels);
    directory.file("t10k-images-idx3-ubyte", file(0x803, &[2, 3, 2], &[0; 12]));
    directory.file("t10k-labels-idx1-ubyte", labels);
    let message = read(directory.path()).unwrap_err().to_string();
    assert!(message.contains("images of 3x2 pixels: expected 2x3"), "{message}");
}

#[test]
fn images_larger_than_memory_have_the_same_batches() {
    let labels: Vec<u8> = (0..20).map(|i| i % 10).collect();
    let [images, label_file] = pair(&labels);
    for (prefixes, images) in [(&["train"][..], images.clone()), (&["t10k", "train"], gzip(&images))] {
        let directory = TestDirectory::new();
        for prefix in prefixes {
            directory.file(&format!("{prefix}-images-idx3-ubyte"), &images);
            directory.file(&format!("{prefix}-labels-idx1-ubyte"), &label_file);
        }
        let memory = read(directory.path()).unwrap();
        let stored =
            super::read(directory.path(), &Options { in_memory_bytes: 119, ..Options::default() }).unwrap();
        assert!(format!("{:?}", stored.test).contains("ByteFile"));
        assert_eq!(stored.fingerprint().unwrap(), memory.fingerprint().unwrap());
        for (stored, memory) in [(stored.train, memory.train), (stored.test, memory.test)] {
            let all: Vec<_> = (0..memory.len()).rev().collect();
            let batch = |split: &Arc<dyn Split>| split.batch(&all, Pass::Evaluation).unwrap();
            assert_eq!(batch(&stored), batch(&memory));
        }
    }
}
