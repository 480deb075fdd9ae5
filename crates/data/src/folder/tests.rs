//! Tests of valid and invalid folders of images.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage};

use super::super::testing::{TestDirectory, normalise};
use super::super::{Batch, Inputs, Pass, Pipeline, Threads};
use super::*;
use crate::bad::OnBadSample;
use crate::dataset::Kind;
use crate::normalization::Normalize;
use crate::split::Split;

/// Writes an image of this size with one grey level.
fn image(directory: &TestDirectory, name: &str, (width, height): (u32, u32), grey: u8) {
    let path = directory.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    GrayImage::from_pixel(width, height, Luma([grey])).save(path).unwrap();
}

fn pixels(split: &Arc<dyn Split>, samples: &[usize], pass: Pass) -> Vec<f32> {
    match split.batch(samples, pass).unwrap().inputs {
        Inputs::Pixels(pixels) => pixels,
        Inputs::Tokens(_) => panic!("not pixels"),
    }
}

#[test]
fn folders_are_classes_and_every_tenth_image_is_held_out() {
    let directory = TestDirectory::new();
    for number in 0..20 {
        image(&directory, &format!("b/{number:02}.png"), (3, 2), 100 + number);
        image(&directory, &format!("a/{number:02}.PNG"), (3, 2), number);
    }
    directory.file("a/notes.txt", "not an image");
    directory.file("a/._00.png", "metadata of another system");
    image(&directory, ".ipynb_checkpoints/00.png", (3, 2), 0);
    let data = read(directory.path(), &Options::default(), None).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 2, width: 3, channels: 1, classes: 2 });
    assert_eq!((data.train.len(), data.test.len()), (36, 4));
    let batch = data.test.batch(&[3, 0, 1, 2], Pass::Evaluation).unwrap();
    assert_eq!(batch.targets, [1, 0, 0, 1]);
    let expected: Vec<_> = [119, 9, 19, 109].into_iter().flat_map(|grey| [normalise(grey); 6]).collect();
    assert_eq!(batch.inputs, Inputs::Pixels(expected));
}

#[test]
fn train_and_test_may_be_folders() {
    let directory = TestDirectory::new();
    image(&directory, "train/cat/1.png", (2, 2), 1);
    image(&directory, "train/dog/1.png", (2, 2), 2);
    // Larger than the first, and a JPEG.
    image(&directory, "test/dog/1.jpg", (8, 8), 200);
    let data = read(directory.path(), &Options::default(), None).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (2, 1));
    let batch = data.test.batch(&[0], Pass::Evaluation).unwrap();
    assert_eq!(batch.targets, [1]);
    assert_eq!(batch.inputs, Inputs::Pixels(vec![normalise(200); 4]));

    image(&directory, "test/cow/1.png", (2, 2), 3);
    let message = read(directory.path(), &Options::default(), None).unwrap_err().to_string();
    assert!(message.contains("cow`: is not a class of `"), "{message}");

    fs::remove_dir_all(directory.path().join("test/cow")).unwrap();
    fs::rename(directory.path().join("test"), directory.path().join("val")).unwrap();
    let data = read(directory.path(), &Options::default(), None).unwrap();
    assert_eq!((data.train.len(), data.test.len()), (2, 1));
}

#[test]
fn links_to_nowhere_and_nested_folders_are_reported() {
    let directory = TestDirectory::new();
    for number in 0..10 {
        image(&directory, &format!("a/{number}.png"), (2, 2), number);
    }
    image(&directory, "a/more/1.png", (2, 2), 0);
    let data = read(directory.path(), &Options::default(), None).unwrap();
    let notices = data.notices().concat();
    assert!(notices.contains("a/more` skipped"), "{notices}");
    symlink("nowhere", directory.path().join("a/10.png")).unwrap();
    let unread =
        read(directory.path(), &Options::default(), None).unwrap().fingerprint().unwrap_err().to_string();
    assert!(unread.starts_with("cannot read `") && unread.contains("a/10.png"), "{unread}");
    symlink("nowhere", directory.path().join("b")).unwrap();
    let unread = read(directory.path(), &Options::default(), None).unwrap_err().to_string();
    assert!(unread.starts_with("cannot read `") && unread.contains("/b`"), "{unread}");
}

#[test]
fn the_limit_of_skipped_images_holds_for_both_parts_together() {
    let directory = TestDirectory::new();
    for number in 0..10 {
        image(&directory, &format!("a/{number}.png"), (2, 2), number);
    }
    for name in ["a/3.png", "a/9.png"] {
        directory.file(name, "damaged");
    }
    let on_bad_sample = OnBadSample::Skip { most: Some(1) };
    let data = read(directory.path(), &Options { on_bad_sample, ..Options::default() }, None).unwrap();
    assert_eq!(data.train.batch(&[3, 4], Pass::Evaluation).unwrap().samples, 1);
    let message = data.test.batch(&[0], Pass::Evaluation).unwrap_err().to_string();
    assert!(
        message.contains("a/9.png") && message.contains("1 damaged samples were skipped before"),
        "{message}"
    );
}

#[test]
fn images_vary_by_epoch_only_in_training() {
    let directory = TestDirectory::new();
    for number in 0..10 {
        let path = directory.path().join("a");
        fs::create_dir_all(&path).unwrap();
        let slope = GrayImage::from_fn(8, 8, |x, y| Luma([(20 * x + y + number) as u8]));
        slope.save(path.join(format!("{number}.png"))).unwrap();
    }
    let augmentation = "affine,mirror".parse().unwrap();
    let data = read(directory.path(), &Options { augmentation, ..Options::default() }, None).unwrap();
    let training = |epoch| Pass::Training { seed: 1, epoch };
    let first = pixels(&data.train, &[3, 4], training(0));
    assert_eq!(first, pixels(&data.train, &[3, 4], training(0)));
    assert_ne!(first, pixels(&data.train, &[3, 4], training(1)));
    // An image does not depend on the other samples of its batch.
    assert_eq!(first[64..], pixels(&data.train, &[4], training(0)));
    let plain = pixels(&data.train, &[3], Pass::Evaluation);
    assert_ne!(first[..64], plain);
    assert_eq!(plain[..2], [normalise(3), normalise(23)]);
    assert_eq!(pixels(&data.test, &[0], training(0)), pixels(&data.test, &[0], Pass::Evaluation));
}

#[test]
fn a_broken_file_is_named_when_it_is_read() {
    let directory = TestDirectory::new();
    for number in 0..10 {
        image(&directory, &format!("a/{number}.png"), (4, 4), number);
    }
    let mut bytes = std::io::Cursor::new(vec![]);
    GrayImage::new(4, 4).write_to(&mut bytes, ImageFormat::Png).unwrap();
    let bytes = bytes.into_inner();
    directory.file("a/3.png", &bytes[..bytes.len() / 2]);
    directory.file("a/4.png", "text");
    let mut bytes = std::io::Cursor::new(vec![]);
    GrayImage::from_fn(64, 64, |x, y| image::Luma([(x * y) as u8]))
        .write_to(&mut bytes, ImageFormat::Jpeg)
        .unwrap();
    directory.file("a/6.png", bytes.get_ref());
    directory.file("a/7.png", &bytes.get_ref()[..bytes.get_ref().len() * 2 / 3]);
    let data = read(directory.path(), &Options::default(), None).unwrap();
    let refusal = |sample| data.train.batch(&[sample], Pass::Evaluation).unwrap_err().to_string();
    let cut = refusal(3);
    assert!(cut.contains("a/3.png`: cannot be decoded"), "{cut}");
    assert_eq!(data.train.batch(&[6], Pass::Evaluation).unwrap().samples, 1);
    let cut = refusal(7);
    assert!(cut.contains("a/7.png`: cannot be decoded: the file ends within the image"), "{cut}");
    let text = refusal(4);
    assert!(
        text.contains("a/4.png`: is of an unknown format: expected PNG, JPEG, WebP, BMP or GIF"),
        "{text}"
    );
    fs::remove_file(directory.path().join("a/5.png")).unwrap();
    let gone = refusal(5);
    assert!(gone.starts_with("cannot read `") && gone.contains("a/5.png"), "{gone}");
    let own = [[0, 1], [2, 3], [4, 5]];
    let mut batches =
        Pipeline::of(own).map(Threads::Fixed(2), move |own| data.train.batch(&own, Pass::Evaluation));
    assert!(matches!(batches.next(), Some(Ok(Batch { samples: 2, .. }))));
    let in_order = batches.next().unwrap().unwrap_err().to_string();
    assert!(in_order.starts_with("element 1: `") && in_order.contains("a/3.png`: "), "{in_order}");
}

#[test]
fn missing_folders_and_images_are_reported() {
    let directory = TestDirectory::new();
    let refusal = || read(directory.path(), &Options::default(), None).unwrap_err().to_string();
    assert!(refusal().contains("contains no directory: expected one for each class"));
    image(&directory, "a/1.png", (2, 2), 0);
    assert!(refusal().contains("1 images, but too few in every class"));
    fs::create_dir(directory.path().join("b")).unwrap();
    let empty = refusal();
    assert!(empty.contains("/b`: contains no image"), "{empty}");
    let missing = read(&directory.path().join("none"), &Options::default(), None);
    assert!(matches!(missing, Err(DataError::Read { .. })));
}

#[test]
fn images_of_all_formats_and_sizes_are_read_with_notices() {
    let directory = TestDirectory::new();
    for (number, extension) in ["png", "jpg", "webp", "bmp", "gif"].into_iter().cycle().take(20).enumerate() {
        let (path, side) = (directory.path().join("a"), 10 + 2 * (number % 3) as u32);
        fs::create_dir_all(&path).unwrap();
        let path = path.join(format!("{number:02}.{extension}"));
        RgbImage::from_pixel(side, 12, Rgb([250, 10, 10])).save(path).unwrap();
    }
    for name in ["a/notes.txt", "a/b.tiff", "a/.hidden"] {
        directory.file(name, "no image");
    }
    let options = Options { normalize: Some(Normalize::Measured), ..Options::default() };
    let data = read(directory.path(), &options, None).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 12, width: 12, channels: 3, classes: 1 });
    let red = data.schema.normalization.clone().unwrap().mean[0];
    assert!((red - 250.0 / 255.0).abs() < 0.01, "{red}");
    let [training, held_out, colour, measured, skipped] = data.notices() else {
        panic!("{:?}", data.notices())
    };
    assert!(
        training.starts_with("12 of 18 training images are resized and cropped to 12x12 pixels"),
        "{training}"
    );
    assert!(held_out.starts_with("1 of 2 held-out images are resized"), "{held_out}");
    assert!(colour.contains("in colour") && measured.contains("measured means and deviations"), "{measured}");
    assert!(
        skipped.contains("b.tiff` and 1 more skipped: expected files whose names end in `png`"),
        "{skipped}"
    );
    for (split, samples) in [(&data.train, 18), (&data.test, 2)] {
        let all: Vec<_> = (0..samples).collect();
        let levels = pixels(split, &all, Pass::Evaluation);
        assert_eq!(levels.len(), samples * 12 * 12 * 3);
    }

    let as_asked = Options { colour: Some(false), image_size: Some([5, 7]), ..Options::default() };
    let data = read(directory.path(), &as_asked, None).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 5, width: 7, channels: 1, classes: 1 });
    assert_eq!(data.notices().len(), 3, "{:?}", data.notices());
}

#[test]
fn grey_images_in_colour_files_are_read_as_greyscale() {
    let directory = TestDirectory::new();
    fs::create_dir_all(directory.path().join("a")).unwrap();
    for number in 0..10 {
        let grey = |x, y| Rgb([(20 * x + 9 * y + number) as u8; 3]);
        RgbImage::from_fn(8, 8, grey).save(directory.path().join(format!("a/{number}.jpg"))).unwrap();
    }
    let data = read(directory.path(), &Options::default(), None).unwrap();
    assert_eq!(data.kind, Kind::Images { height: 8, width: 8, channels: 1, classes: 1 });
    assert!(data.notices().is_empty(), "{:?}", data.notices());
}
