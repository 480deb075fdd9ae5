//! Tests of valid and invalid records.

use std::io::Cursor;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use image::{ImageFormat, Luma};

use super::super::framing::{self, HEADER_BYTES};
use super::super::testing::{TestDirectory, gzip, gzip_parts, normalise, zlib};
use super::*;
use crate::bad::OnBadSample;
use crate::batch::{Inputs, Pass};
use crate::dataset::Kind;

fn bytes(bytes: &[u8]) -> Feature {
    Feature { bytes: Some(BytesList { value: vec![bytes.to_vec()] }), ..Feature::default() }
}

fn integer(number: i64) -> Feature {
    Feature { integers: Some(Int64List { value: vec![number] }), ..Feature::default() }
}

/// Returns a record with these features.
fn example<const N: usize>(features: [(&str, Feature); N]) -> Vec<u8> {
    let feature = features.map(|(name, feature)| (name.to_owned(), feature));
    Example { features: Some(Features { feature: feature.into() }) }.encode_to_vec()
}

/// Returns a record with an image of 2x2 raw grey levels, all equal.
fn plain(grey: u8, label: i64) -> Vec<u8> {
    example([("image", bytes(&[grey; 4])), ("label", integer(label))])
}

fn frames(records: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut file = vec![];
    for record in records {
        framing::write(&mut file, &record).unwrap();
    }
    file
}

/// Returns twenty images of one grey level each, in three classes. Training sample i is image i + i / 9.
fn twenty() -> Vec<u8> {
    frames((0..20).map(|number| plain(number, i64::from(number % 3))))
}

fn load(file: impl AsRef<[u8]>, options: &Options) -> Result<Dataset, DataError> {
    let directory = TestDirectory::new();
    read(&directory.file("some.tfrecord", file), options)
}

#[test]
fn records_are_read_as_written() {
    let data = load(twenty(), &Options::default()).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 2, width: 2, channels: 1, classes: 3 });
    assert_eq!((data.train.len(), data.test.len()), (18, 2));
    let batch = data.train.batch(&[17, 0, 9], Pass::Evaluation).unwrap();
    assert_eq!(batch.targets, [0, 0, 1]);
    let expected = [18, 0, 10].into_iter().flat_map(|grey| [normalise(grey); 4]).collect();
    assert_eq!(batch.inputs, Inputs::Pixels(expected));
    assert_eq!(data.test.batch(&[0, 1], Pass::Evaluation).unwrap().targets, [0, 1]);
}

#[test]
fn file_names_select_training_and_test_files() {
    let directory = TestDirectory::new();
    directory.file("x-train.tfrecord-00001-of-00002", frames([plain(3, 0)]));
    directory.file("x-train.tfrecord-00000-of-00002", frames([plain(1, 1), plain(2, 2)]));
    directory.file("x-test.tfrecord-00000-of-00001", frames([plain(4, 3)]));
    directory.file("features.json", "{}");
    directory.file("._x-train.tfrecord-00000-of-00002", "metadata of another system");
    let data = read(directory.path(), &Options::default()).unwrap();
    assert_eq!(data.train.batch(&[0, 1, 2], Pass::Evaluation).unwrap().targets, [1, 2, 0]);
    assert_eq!(data.test.batch(&[0], Pass::Evaluation).unwrap().targets, [3]);
    assert!(matches!(data.kind, Kind::Images { classes: 4, .. }));
    symlink("nowhere", directory.path().join("x-train.tfrecord-00002-of-00002")).unwrap();
    let message = read(directory.path(), &Options::default()).unwrap_err().to_string();
    assert!(message.starts_with("cannot read `") && message.contains("00002-of-00002"), "{message}");

    let only = TestDirectory::new();
    only.file("val.tfrecord", twenty());
    let message = read(only.path(), &Options::default()).unwrap_err().to_string();
    assert!(
        message.contains("all records are held out, by `test`, `val`, `validation` in the names"),
        "{message}"
    );

    let empty = TestDirectory::new();
    let message = read(empty.path(), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("contains no file with `tfrec` in its name"), "{message}");
}

#[test]
fn encoded_and_raw_images_are_read() {
    let mut png = Cursor::new(vec![]);
    GrayImage::from_fn(3, 2, |x, y| Luma([(10 * x + y) as u8])).write_to(&mut png, ImageFormat::Png).unwrap();
    let encoded = example([("image/encoded", bytes(png.get_ref())), ("image/class/label", integer(1))]);
    let sized = example([
        ("image", bytes(&[0, 10, 20, 1, 11, 21])),
        ("height", integer(2)),
        ("width", integer(3)),
        ("label", integer(0)),
    ]);
    let data = load(frames([encoded, sized].into_iter().cycle().take(10)), &Options::default()).unwrap();
    assert!(matches!(data.kind, Kind::Images { height: 2, width: 3, .. }));
    let batch = data.train.batch(&[0, 1], Pass::Evaluation).unwrap();
    let image = [0, 10, 20, 1, 11, 21].map(normalise);
    assert_eq!(batch.inputs, Inputs::Pixels([image, image].concat()));
    assert_eq!(batch.targets, [1, 0]);
}

#[test]
fn a_flipped_byte_is_reported_with_its_record() {
    let frame = frames([plain(0, 0)]).len();
    let with_flip = |at: usize| {
        let mut file = twenty();
        file[at] ^= 1;
        file
    };
    // In a record, it is detected only when the record is read.
    let classes = Options { classes: Some(3), ..Options::default() };
    let data = load(with_flip(4 * frame + HEADER_BYTES + 9), &classes).unwrap();
    let message = data.train.batch(&[3, 4], Pass::Evaluation).unwrap_err().to_string();
    assert!(message.contains("some.tfrecord`, record 4: its checksum is wrong"), "{message}");
    assert!(data.train.batch(&[3, 5], Pass::Evaluation).is_ok());
    // All records are read if the number of classes is not given.
    let message = load(with_flip(4 * frame + HEADER_BYTES + 9), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("record 4: its checksum"), "{message}");
    // A damaged record is left out if it may be skipped.
    let skips = Options { on_bad_sample: OnBadSample::Skip { most: None }, ..Options::default() };
    let data = load(with_flip(4 * frame + HEADER_BYTES + 9), &skips).unwrap();
    let batch = data.train.batch(&[3, 4, 5], Pass::Evaluation).unwrap();
    assert_eq!((batch.samples, batch.targets), (2, vec![0, 2]));
    let skipped = data.train.skipped(0);
    assert!(skipped.count == 1 && skipped.problems[0].1.contains("record 4"), "{skipped:?}");
    let message = load(with_flip(7 * frame), &classes).unwrap_err().to_string();
    assert!(message.contains("record 7: its header's checksum is wrong"), "{message}");
    for cut in [1, frame - 1] {
        let message = load(&twenty()[..20 * frame - cut], &classes).unwrap_err().to_string();
        assert!(message.contains("record 19: the file ends within it"), "{message}");
    }
}

#[test]
fn missing_features_are_named() {
    let refusal = |record: Vec<u8>| {
        let records = [plain(0, 0), plain(0, 0), record].into_iter().chain(vec![plain(0, 1); 9]);
        let data = load(frames(records), &Options { classes: Some(2), ..Options::default() }).unwrap();
        data.train.batch(&[2], Pass::Evaluation).unwrap_err().to_string()
    };
    let cases = [
        (example([("label", integer(0))]), "no feature `image/encoded` or `image` of bytes"),
        (example([("image", bytes(&[0; 4]))]), "no feature `image/class/label` or `label` of int64"),
        (example([("image", integer(0)), ("label", integer(0))]), r#"there are ["image", "label"]"#),
        (example([("image", bytes(&[0; 5])), ("label", integer(0))]), "an image of 5 bytes: expected PNG"),
        (example([("image", bytes(&[])), ("label", integer(0))]), "an image of 0 bytes"),
        (example([("image", bytes(b"\x89PNG\r\n\x1a\nxx")), ("label", integer(0))]), "cannot be decoded"),
        (plain(0, 2), "has the label 2: expected one from 0 to 1"),
        (plain(0, -1), "has the label -1"),
        (vec![0xff; 9], "does not contain a `tf.train.Example`"),
    ];
    for (record, expected) in cases {
        let message = refusal(record);
        assert!(message.contains("record 2: ") && message.contains(expected), "{message}, not {expected}");
    }
}

#[test]
fn too_few_records_are_refused() {
    for file in [vec![], frames([plain(0, 0)])] {
        let message = load(file, &Options::default()).unwrap_err().to_string();
        assert!(message.contains("records, expected at least 10"), "{message}");
    }
}

/// Tests that compression is detected independently of the name.
#[test]
fn compressed_records_are_read_like_plain_ones() {
    let content = twenty();
    let all: Vec<_> = (0..18).collect();
    let batch = |data: &Dataset| data.train.batch(&all, Pass::Evaluation).unwrap();
    let plain = load(&content, &Options::default()).unwrap();
    for packed in [gzip(&content), zlib(&content, 6)] {
        let data = load(&packed, &Options::default()).unwrap();
        assert_eq!(batch(&data), batch(&plain));
        assert_eq!(data.fingerprint().unwrap(), plain.fingerprint().unwrap());
        for end in [15, packed.len() / 2, packed.len() - 1] {
            let message = load(&packed[..end], &Options::default()).unwrap_err().to_string();
            assert!(message.contains("some.tfrecord`: cannot be unpacked"), "{message}");
        }
    }
}

/// Tests a few megabytes that decompress to more than a gigabyte.
#[test]
fn a_record_is_verified_before_the_next_one_is_decompressed() {
    let header = |length: u64| {
        [&length.to_le_bytes()[..], &framing::checksum(&length.to_le_bytes()).to_le_bytes()].concat()
    };
    let zeros = vec![0; 16 << 20];
    let many = [&zeros[..]; 16];
    let (good, large) = (twenty(), header(1 << 30));
    let damaged = header(zeros.len() as u64);
    for (start, record, problem) in [
        (&[][..], 0, "its header's checksum is wrong"),
        (&good[..], 20, "its header's checksum is wrong"),
        (&large[..], 0, "it has 1073741824 bytes: expected at most 268435456"),
        (&damaged[..], 0, "its checksum is wrong"),
    ] {
        let bomb = gzip_parts(&[&[start][..], &many[..]].concat());
        let began = Instant::now();
        let message = load(bomb, &Options::default()).unwrap_err().to_string();
        assert!(message.contains(&format!("record {record}: {problem}")), "{message}");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
    // A damaged record may be skipped, whether its file is compressed or not.
    let mut one_bad = twenty();
    one_bad[HEADER_BYTES + 1] ^= 1;
    let options = Options { on_bad_sample: OnBadSample::Skip { most: None }, ..Options::default() };
    let data = load(gzip(&one_bad), &options).unwrap();
    assert_eq!(data.train.batch(&[0, 1], Pass::Evaluation).unwrap().samples, 1);
}

#[test]
fn patterns_select_the_files_of_both_parts() {
    let directory = TestDirectory::new();
    directory.file("train-1", frames([plain(3, 0)]));
    directory.file("train-0", frames([plain(1, 1), plain(2, 2)]));
    directory.file("test-0", frames([plain(4, 3)]));
    for name in ["*-?", "train-{0..1},DIR/test-0"] {
        let name = directory.path().join(name.replace("DIR", directory.path().to_str().unwrap()));
        let data = read(&name, &Options::default()).unwrap();
        assert_eq!(data.train.batch(&[0, 1, 2], Pass::Evaluation).unwrap().targets, [1, 2, 0]);
        assert_eq!(data.test.batch(&[0], Pass::Evaluation).unwrap().targets, [3]);
    }
    let message = read(&directory.path().join("val-*"), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("no file matches `") && message.contains("val-*`"), "{message}");
}
