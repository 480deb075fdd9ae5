//! Tests of valid and invalid tar files.

use std::io::Cursor;

use image::{GrayImage, ImageFormat, Luma};
use proptest::prelude::*;
use tar::{Builder, Header};

use super::super::testing::{TestDirectory, gzip, gzip_parts, normalise};
use super::*;
use crate::batch::Pass;
use crate::{Inputs, Kind, OnBadSample};

fn picture(grey: u8, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(vec![]);
    GrayImage::from_pixel(3, 2, Luma([grey])).write_to(&mut file, format).unwrap();
    file.into_inner()
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = Builder::new(vec![]);
    for (name, bytes) in members {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Returns samples with these numbers. Their classes, alternating between both forms, are the numbers modulo 3.
fn shard(numbers: Range<u8>) -> Vec<u8> {
    let mut members = vec![];
    for number in numbers {
        let label = number % 3;
        let (kind, class) = match number % 2 {
            0 => ("cls", format!("{label}\n")),
            _ => ("json", format!("{{\"caption\": \"a.b\", \"label\": {label}}}")),
        };
        let key = format!("{}/{number:04}", "long/".repeat(30));
        members.push((format!("{key}.png"), picture(number, ImageFormat::Png)));
        members.push((format!("{key}.{kind}"), class.into_bytes()));
        members.push((format!("{key}.txt"), b"ignored".to_vec()));
    }
    let members: Vec<_> = members.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    tar(&members)
}

fn load(file: &[u8]) -> Result<Dataset, DataError> {
    load_with(file, &Options::default())
}

fn load_with(file: &[u8], options: &Options) -> Result<Dataset, DataError> {
    let directory = TestDirectory::new();
    read(&directory.file("some.tar", file), options)
}

#[test]
fn a_damaged_image_is_named_or_skipped() {
    let mut members: Vec<_> =
        (0..10).map(|number| (format!("{number}.png"), picture(number, ImageFormat::Png))).collect();
    members[4].1.truncate(40);
    members.extend((0..10).map(|number| (format!("{number}.cls"), b"1".to_vec())));
    members.sort();
    let members: Vec<_> = members.iter().map(|(name, bytes)| (&**name, &**bytes)).collect();
    let file = tar(&members);
    let message = load(&file).unwrap().train.batch(&[3, 4], Pass::Evaluation).unwrap_err().to_string();
    assert!(message.contains("some.tar`: sample `4`: its image cannot be decoded"), "{message}");
    let options = Options { on_bad_sample: OnBadSample::Skip { most: Some(1) }, ..Options::default() };
    let data = load_with(&file, &options).unwrap();
    assert_eq!(data.train.batch(&[3, 4], Pass::Evaluation).unwrap().samples, 1);
    assert_eq!(data.train.skipped(0).count, 1);
}

/// Returns a BMP file whose header claims these sides, without pixels.
fn bare_bmp(width: i32, height: i32) -> Vec<u8> {
    let mut file = b"BM\x36\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    file.extend([width.to_le_bytes(), height.to_le_bytes()].concat());
    // One plane of 24 bits per pixel, uncompressed.
    file.extend([1, 0, 24, 0]);
    file.resize(0x36, 0);
    file
}

/// Returns a lossless WebP file of one colour.
fn plain_webp(width: u64, height: u64) -> Vec<u8> {
    // The signature, the sides, no transform and no cache. Each of the five codes has one symbol, which takes no bits.
    let content = 0x2f | ((width - 1) << 8) | ((height - 1) << 22) | (0x1_1111 << 43);
    [&b"RIFF\x14\0\0\0WEBPVP8L\x08\0\0\0"[..], &content.to_le_bytes()].concat()
}

#[test]
fn a_large_webp_image_in_few_bytes_is_decoded_up_to_the_limit_of_all_formats() {
    let image = Raw::Encoded(plain_webp(2_000, 1_500)).decode(1).unwrap();
    assert_eq!(image.shape(), [1_500, 2_000, 1]);
    let refused = Raw::Encoded(plain_webp(16_383, 16_383)).decode(1).unwrap_err();
    assert!(refused.starts_with("cannot be decoded: "), "{refused}");
}

#[test]
fn a_file_that_is_named_with_its_directory_is_refused() {
    let directory = TestDirectory::new();
    let file = directory.file("some.tar", shard(0..20));
    let both = format!("{},{}", file.display(), directory.path().display());
    let message = read(Path::new(&both), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("some.tar`: is named twice in"), "{message}");
}

#[test]
fn an_image_without_pixels_is_damaged() {
    let png = picture(1, ImageFormat::Png);
    for (width, height) in [(3, 0), (0, 2), (0, 0)] {
        let bare = bare_bmp(width, height);
        let names: Vec<_> = (0..10).map(|key| [format!("{key}.png"), format!("{key}.cls")]).collect();
        let image = |key: usize| if key == 4 { ("4.bmp", &*bare) } else { (&*names[key][0], &*png) };
        let members: Vec<_> = (0..10).flat_map(|key| [image(key), (&*names[key][1], &b"1"[..])]).collect();
        let file = tar(&members);
        let data = load(&file).unwrap();
        assert_eq!(data.kind, Kind::Images { height: 2, width: 3, channels: 1, classes: 2 });
        let message = data.train.batch(&[3, 4], Pass::Evaluation).unwrap_err().to_string();
        assert!(message.contains("sample `4`: its image cannot be decoded"), "{message}");
        let options = Options { on_bad_sample: OnBadSample::Skip { most: Some(1) }, ..Options::default() };
        let data = load_with(&file, &options).unwrap();
        assert_eq!(data.train.batch(&[3, 4], Pass::Evaluation).unwrap().samples, 1);
    }
}

#[test]
fn linked_members_of_samples_are_refused() {
    let linked = |name: &str, entry_type| {
        let mut archive = Builder::new(vec![]);
        let mut header = Header::new_gnu();
        header.set_entry_type(entry_type);
        header.set_size(0);
        archive.append_link(&mut header, name, "0010.png").unwrap();
        let mut file = archive.into_inner().unwrap();
        // The samples follow in place of the end mark.
        file.truncate(BLOCK as usize);
        [file, shard(0..20)].concat()
    };
    for entry_type in [EntryType::Link, EntryType::Symlink] {
        let message = load(&linked("x/7.PNG", entry_type)).unwrap_err().to_string();
        assert!(message.contains("some.tar`: has a link, `x/7.PNG`: expected plain members"), "{message}");
        assert_eq!(load(&linked("latest.txt", entry_type)).unwrap().train.len(), 18);
    }
}

#[test]
fn a_volume_label_is_reported() {
    let mut label = Header::new_old();
    label.set_entry_type(EntryType::new(b'V'));
    label.set_cksum();
    let message = load(&[label.as_bytes(), &*shard(0..20)].concat()).unwrap_err().to_string();
    assert!(message.contains("some.tar`: is not a tar file, has a volume label (`tar -V`), or"), "{message}");
}

#[test]
fn samples_are_read_as_written() {
    for file in [shard(0..20), gzip(&shard(0..20))] {
        let data = load(&file).unwrap();
        assert_eq!(data.kind, Kind::Images { height: 2, width: 3, channels: 1, classes: 3 });
        assert_eq!((data.train.len(), data.test.len()), (18, 2));
        let batch = data.train.batch(&[17, 0, 9], Pass::Evaluation).unwrap();
        assert_eq!(batch.targets, [0, 0, 1]);
        let expected = [18, 0, 10].into_iter().flat_map(|grey| [normalise(grey); 6]).collect();
        assert_eq!(batch.inputs, Inputs::Pixels(expected));
    }
}

#[test]
fn content_after_the_end_of_a_gzipped_file_is_discarded() {
    let packed = gzip_parts(&[&shard(0..20), &vec![0; 64 << 20]]);
    let directory = TestDirectory::new();
    let mut members = Members::default();
    let samples = members.add(directory.file("some.tar.gz", packed)).unwrap();
    assert_eq!(samples, 0..20);
    assert!(members.files[0].length <= shard(0..20).len() as u64, "{}", members.files[0].length);
}

#[test]
fn shards_are_found_by_directory_pattern_and_braces() {
    let directory = TestDirectory::new();
    directory.file("train-000.tar", shard(0..4));
    directory.file("train-001.tar", shard(4..7));
    directory.file("val-000.tar", shard(7..9));
    directory.file("notes.txt", "");
    let fingerprint = |name: &str| {
        let data = read(&directory.path().join(name), &Options::default()).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (7, 2), "{name}");
        let targets = data.train.batch(&[0, 1, 2, 3, 4, 5, 6], Pass::Evaluation).unwrap().targets;
        assert_eq!(targets, [0, 1, 2, 0, 1, 2, 0]);
        data.fingerprint().unwrap()
    };
    let whole = fingerprint("");
    for name in ["*.tar", "{train-000,train-001,val-000}.tar"] {
        assert_eq!(fingerprint(name), whole);
    }
    let message =
        read(&directory.path().join("train-{000..002}.tar"), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("cannot read `") && message.contains("train-002.tar`"), "{message}");
    let empty = TestDirectory::new();
    let message = read(empty.path(), &Options::default()).unwrap_err().to_string();
    assert!(message.contains("contains no file whose name ends in .tar"), "{message}");
}

/// The first members of a file, and the expected error.
type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a str);

#[test]
fn errors_name_file_and_key() {
    let png = picture(1, ImageFormat::Png);
    let jpeg = picture(1, ImageFormat::Jpeg);
    let cases: [Case; 11] = [
        (
            &[("x/7.png", &png)],
            "sample `x/7`: has no class: expected a member `.cls` or `.json`; the members of",
        ),
        (&[("x/7.cls", b"1")], "sample `x/7`: has no image"),
        (&[("7.cls", b"1"), ("8.png", &png)], "sample `7`: has no image"),
        (&[("7.png", &png), ("7.JPG", &jpeg), ("7.cls", b"1")], "sample `7`: has another member like `.JPG`"),
        (&[("7.png", &png), ("7.cls", b"cat")], "sample `7`: its `.cls` says `cat`: expected a number"),
        (&[("7.png", &png), ("7.cls", b"-1")], "says `-1`"),
        (&[("7.png", &png), ("7.cls", &[0xff])], "says `\u{fffd}`"),
        (&[("7.png", &png), ("7.json", b"{")], "sample `7`: its `.json` cannot be read"),
        (&[("7.png", &png), ("7.json", b"{\"label\": 1.5}")], "its `.json` has no number `label` or `cls`"),
        (&[("7.png", b"no"), ("7.cls", b"1")], "sample `7`: its image is of an unknown format"),
        (&[], "too short: 0 samples, expected at least 10"),
    ];
    for (members, expected) in cases {
        // An image is read when a batch needs it.
        let rest: Vec<_> = if members.is_empty() { vec![] } else { names() };
        let rest = rest.iter().flat_map(|name| [(&*name.0, &*png), (&*name.1, &b"0"[..])]);
        let all: Vec<_> = members.iter().copied().chain(rest).collect();
        let batch = load(&tar(&all)).and_then(|data| data.train.batch(&[0], Pass::Evaluation));
        let message = batch.unwrap_err().to_string();
        assert!(message.contains("some.tar`") && message.contains(expected), "{message}, not {expected}");
    }
}

/// Returns the names of the members of ten more samples.
fn names() -> Vec<(String, String)> {
    (10..20).map(|key| (format!("{key}.png"), format!("{key}.cls"))).collect()
}

#[test]
fn members_that_belong_to_no_sample_are_skipped() {
    let png = picture(1, ImageFormat::Png);
    let names = names();
    let samples = names.iter().flat_map(|name| [(&*name.0, &*png), (&*name.1, &b"0"[..])]);
    let others: [(&str, &[u8]); 3] = [("README", b"x"), (".hidden.png", b"x"), ("__meta__.json", b"x")];
    assert_eq!(load(&tar(&others.into_iter().chain(samples).collect::<Vec<_>>())).unwrap().train.len(), 9);
}

#[test]
fn a_truncated_file_is_refused() {
    let whole = shard(0..12);
    let end = whole.len() - 2 * BLOCK as usize;
    for at in (1..=end).step_by(1999).chain((BLOCK as usize..=end).step_by(8 * BLOCK as usize)) {
        let message = load(&whole[..at]).unwrap_err().to_string();
        assert!(message.contains("some.tar`"), "{message}");
    }
    let message = load(&whole[..end]).unwrap_err().to_string();
    assert!(message.contains("has no end mark: it is cut off"), "{message}");
}

#[test]
fn labels_beyond_the_known_classes_are_refused() {
    let directory = TestDirectory::new();
    let path = directory.file("some.tar", shard(0..20));
    let classes = |classes| read(&path, &Options { classes: Some(classes), ..Options::default() });
    assert!(classes(3).is_ok());
    let message = classes(2).unwrap_err().to_string();
    assert!(message.contains("0002`: the label is 2: expected one from 0 to 1"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn damaged_files_never_panic(damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut file = shard(0..12);
        for (at, byte) in damages {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Ok(data) = load(&file) {
            let all: Vec<_> = (0..data.train.len()).collect();
            let _ = data.train.batch(&all, Pass::Evaluation);
        }
    }
}
